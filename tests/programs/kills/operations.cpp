#include "operations.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <utility>

#include <tutti/coalesce.hpp>
#include <tutti/gather.hpp>

namespace tutti::test {
namespace {

int root(const Arrays& a) {
  return a.calls % a.size;
}
int next(const Arrays& a) {
  return (a.rank + 1) % a.size;
}
int previous(const Arrays& a) {
  return (a.rank + a.size - 1) % a.size;
}

/// From each rank to the next one; rank 0 sends first, so it goes round.
void pass_on(ProcessGroup& group, Arrays& a) {
  if (a.rank == 0) group.send(a.whole, next(a));
  group.recv(a.whole_too, previous(a));
  if (a.rank != 0) group.send(a.whole, next(a));
}

void coalesced(ProcessGroup& group, Arrays& a) {
  Coalesce calls(group);
  calls.add(group.all_reduce_async(a.whole));
  calls.add(group.sendrecv_async(a.slice, next(a), std::span(a.whole_too).first(a.slice.size()),
                                 previous(a)));
  calls.launch().wait();
}

void several_at_a_time(ProcessGroup& group, Arrays& a) {
  std::array works{group.all_reduce_async(a.whole), group.all_gather_async(a.slice, a.whole_too)};
  auto all = Work::all(works);
  all.wait();
}

void both_asynchronous(ProcessGroup& group, Arrays& a) {
  auto send = group.send_async(a.whole, next(a));
  auto recv = group.recv_async(a.whole_too, previous(a));
  send.wait();
  recv.wait();
}

void broadcast_text(ProcessGroup& group, Arrays& a) {
  std::string text = a.rank == 0 ? a.text : std::string();
  broadcast_bytes(group, text, 0);
}

std::vector<Operation> all_operations() {
  using Group = ProcessGroup;
  return {
      {"all_reduce", [](Group& g, Arrays& a) { g.all_reduce(a.whole, ReduceOp::max); }},
      {"all_reduce in a fixed order",
       [](Group& g, Arrays& a) {
         g.all_reduce(a.whole, a.whole_too, ReduceOp::sum, {.order_fixed = true});
       }},
      {"broadcast", [](Group& g, Arrays& a) { g.broadcast(a.whole, root(a)); }},
      {"reduce", [](Group& g, Arrays& a) { g.reduce(a.whole, a.whole_too, root(a)); }},
      {"all_gather", [](Group& g, Arrays& a) { g.all_gather(a.slice, a.whole); }},
      {"all_gather of unequal rows",
       [](Group& g, Arrays& a) {
         const auto own = static_cast<std::size_t>(a.rows[static_cast<std::size_t>(a.rank)]);
         g.all_gather(std::span(a.whole_too).first(own), a.whole, a.rows);
       }},
      {"reduce_scatter", [](Group& g, Arrays& a) { g.reduce_scatter(a.whole, a.slice); }},
      {"all_to_all", [](Group& g, Arrays& a) { g.all_to_all(a.whole, a.whole_too); }},
      {"gather", [](Group& g, Arrays& a) { g.gather(a.slice, a.whole, root(a)); }},
      {"scatter", [](Group& g, Arrays& a) { g.scatter(a.whole, a.slice, root(a)); }},
      {"scan", [](Group& g, Arrays& a) { g.scan(a.whole, a.whole_too, ReduceOp::max); }},
      {"exclusive_scan",
       [](Group& g, Arrays& a) { g.exclusive_scan(a.whole, a.whole_too, ReduceOp::max); }},
      {"barrier", [](Group& g, Arrays&) { g.barrier(); }},
      {"send and recv", pass_on},
      {"sendrecv",
       [](Group& g, Arrays& a) { g.sendrecv(a.whole, next(a), a.whole_too, previous(a)); }},
      {"send_async and recv_async", both_asynchronous},
      {"coalesced calls", coalesced},
      {"asynchronous calls", several_at_a_time},
      {"split", [](Group& g, Arrays& a) { g.split(0, a.rank)->all_reduce(a.whole); }},
      {"subset",
       [](Group& g, Arrays& a) {
         if (auto part = g.subset({0, 1})) part->all_reduce(a.whole);
       }},
      {"all_gather_rows",
       [](Group& g, Arrays& a) {
         const auto own = static_cast<std::size_t>(a.rows[static_cast<std::size_t>(a.rank)]);
         (void)all_gather_rows(g, std::span(a.whole).first(own));
       }},
      {"gather_rows", [](Group& g, Arrays& a) { (void)gather_rows(g, a.slice, root(a)); }},
      {"scatter_rows",
       [](Group& g, Arrays& a) { (void)scatter_rows(g, a.whole, RowLayout(a.rows), root(a)); }},
      {"reduce_scatter_rows",
       [](Group& g, Arrays& a) { (void)reduce_scatter_rows(g, a.whole, RowLayout(a.rows)); }},
      {"all_to_all_rows", [](Group& g, Arrays& a) { (void)all_to_all_rows(g, a.whole); }},
      {"broadcast_bytes", broadcast_text},
  };
}

}  // namespace

Arrays::Arrays(const ProcessGroup& group, std::size_t bytes)
    : rank(group.rank()),
      size(group.size()),
      slice(std::max<std::size_t>(bytes / sizeof(float) / static_cast<std::size_t>(size), 1), 1),
      whole(static_cast<std::size_t>(size) * slice.size(), 1),
      whole_too(whole.size()),
      rows(static_cast<std::size_t>(size), std::ssize(slice)),
      text(rank == 0 ? bytes : 0, 'a') {
  const auto moved = rows[0] / 2;
  rows[0] -= moved;
  rows[1] += moved;
}

std::span<const Operation> operations() {
  static const std::vector<Operation> all = all_operations();
  return all;
}

}  // namespace tutti::test
