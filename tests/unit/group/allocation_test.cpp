#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/process_group.hpp>

#include "support/counted_allocations.hpp"
#include "support/ranks.hpp"

// A steady stream of calls allocates nothing.

namespace tutti::test {
namespace {

constexpr int ranks = 2;
constexpr int warm_up = 300;
constexpr int counted = 300;

/// One rank's arrays and its repeated calls.
struct Arrays {
  std::vector<float> small = std::vector<float>(6);
  std::vector<float> large = std::vector<float>(6 * ranks);
  std::vector<float> other = std::vector<float>(6 * ranks);
  std::vector<std::int64_t> rows{4, 8};
  std::array<Work, 8> works;
  int calls = 0;
};
using Call = std::function<void(ProcessGroup&, Arrays&)>;

/// Allocations of all ranks in `counted` calls each, after a warm-up.
std::uint64_t count(const Call& call) {
  CountingMemory memory;
  RankBarrier barrier(ranks);
  std::atomic<std::uint64_t> result = 0;
  on_fresh_ranks({"local", ranks, false},
                 [&](ProcessGroup& group) {
                   Arrays arrays;
                   for (int i = 0; i < warm_up; ++i) call(group, arrays);
                   barrier.wait();
                   if (group.rank() == 0) begin_counting();
                   barrier.wait();
                   for (int i = 0; i < counted; ++i) call(group, arrays);
                   barrier.wait();
                   if (group.rank() == 0) result = end_counting();
                   barrier.wait();
                 },
                 {.adjust = [&](GroupOptions& options) { options.memory = &memory; }});
  return result;
}

struct Case {
  std::string name;
  Call call;
};
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.name;
}

std::vector<Case> cases() {
  using G = ProcessGroup;
  using A = Arrays;
  const auto part = [](A& a, int rank) {
    return TensorView(a.large.data(), DType::f32, {a.rows[static_cast<std::size_t>(rank)]});
  };
  return {
      {"all_reduce", [](G& g, A& a) { g.all_reduce(a.small); }},
      {"all_reduce_out", [](G& g, A& a) { g.all_reduce(a.large, a.other, ReduceOp::avg); }},
      {"all_reduce_premul", [](G& g, A& a) { g.all_reduce(a.small, ReduceOp::premul(0.5)); }},
      {"all_reduce_named",
       [](G& g, A& a) {
         g.all_reduce(a.small, ReduceOp::sum,
                      {.name = "a name that does not fit into the string itself"});
       }},
      {"all_reduce_deadline",
       [](G& g, A& a) { g.all_reduce(a.small, ReduceOp::sum, {.deadline = 10s}); }},
      {"broadcast", [](G& g, A& a) { g.broadcast(a.small, 1); }},
      {"reduce", [](G& g, A& a) { g.reduce(a.large, a.other, 0); }},
      {"all_gather", [](G& g, A& a) { g.all_gather(a.small, a.large); }},
      {"all_gather_uneven",
       [part](G& g, A& a) { g.all_gather(part(a, g.rank()), a.other, a.rows); }},
      {"reduce_scatter", [](G& g, A& a) { g.reduce_scatter(a.large, a.small); }},
      {"all_to_all", [](G& g, A& a) { g.all_to_all(a.large, a.other); }},
      {"gather", [](G& g, A& a) { g.gather(a.small, a.large, 0); }},
      {"scatter", [](G& g, A& a) { g.scatter(a.large, a.small, 1); }},
      {"scan", [](G& g, A& a) { g.scan(a.large, a.other); }},
      {"exclusive_scan", [](G& g, A& a) { g.exclusive_scan(a.large, a.other); }},
      {"barrier", [](G& g, A&) { g.barrier(); }},
      {"send_recv",
       [](G& g, A& a) {
         if (g.rank() == 0)
           g.send(a.small, 1);
         else
           g.recv(a.small, 0);
       }},
      {"all_reduce_async", [](G& g, A& a) { g.all_reduce_async(a.small).wait(); }},
      {"all_gather_async_uneven",
       [part](G& g, A& a) { g.all_gather_async(part(a, g.rank()), a.other, a.rows).wait(); }},
      {"all_reduce_async_named",
       [](G& g, A& a) {
         g.all_reduce_async(a.small, ReduceOp::sum,
                            {.name = "a name that does not fit into the string itself"})
             .wait();
       }},
      {"barrier_async", [](G& g, A&) { g.barrier_async().wait(); }},
      {"eight_in_flight",
       [](G& g, A& a) {
         for (auto& work : a.works) work = g.all_reduce_async(a.small);
         for (auto& work : a.works) work.wait();
       }},
      {"async_and_inline",
       [](G& g, A& a) {
         Work work = g.all_reduce_async(a.small);
         g.broadcast(a.other, 0);
         work.wait();
       }},
      {"send_recv_async",
       [](G& g, A& a) {
         Work send = g.send_async(a.small, 1 - g.rank());
         Work recv = g.recv_async(std::span(a.other).first(a.small.size()), 1 - g.rank());
         send.wait();
         recv.wait();
       }},
      {"sendrecv",
       [](G& g, A& a) {
         g.sendrecv(a.small, 1 - g.rank(), std::span(a.other).first(a.small.size()), 1 - g.rank());
       }},
      {"send_recv_from_any_peer",
       [](G& g, A& a) {
         if (g.rank() == 0)
           g.send(a.small, 1);
         else
           g.recv(a.small, any_peer);
       }},
      // A slow rank changes which side of a message comes first.
      {"send_recv_in_the_other_order_than_before",
       [](G& g, A& a) {
         const auto out = std::span(a.other).first(a.small.size());
         const bool receives_first = a.calls++ < warm_up;
         Work first =
             receives_first ? g.recv_async(out, g.rank()) : g.send_async(a.small, g.rank());
         if (receives_first)
           g.send(a.small, g.rank());
         else
           g.recv(out, g.rank());
         first.wait();
       }},
      {"trace_of_a_call_that_is_named",
       [](G& g, A& a) { g.broadcast(a.small, 0, {.name = "0123456789abcdef0123456789"}); }},
  };
}

class Allocation : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Calls, Allocation, testing::ValuesIn(cases()),
                         [](const auto& c) { return c.param.name; });

TEST_P(Allocation, OfASteadyStreamOfCallsIsNone) {
  EXPECT_EQ(count(GetParam().call), 0U) << "in " << counted << " calls of each of " << ranks;
}

// Before main(), so that no other call of it comes before.
const std::uint64_t of_first_host_memory = [] {
  begin_counting();
  (void)host_memory();
  return end_counting();
}();

// It is noexcept, so that an allocation that fails would end the process.
TEST(HostMemory, AllocatesNothingAtItsFirstUse) {
  EXPECT_EQ(of_first_host_memory, 0U);
}

// Checks that the counter can fail.
TEST(AllocationCounter, SeesTheLibrarysOwnAllocations) {
  begin_counting();
  const auto group = ProcessGroup::create({.backend = "local", .checked = false});
  EXPECT_GT(end_counting(), 0U);
}

}  // namespace
}  // namespace tutti::test
