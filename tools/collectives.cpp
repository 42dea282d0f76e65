#include "collectives.hpp"

#include <array>

#include <tutti/work.hpp>

namespace tutti::tool {
namespace {

double whole(double) {
  return 1;
}
double all_but_own(double n) {
  return (n - 1) / n;
}
double twice_all_but_own(double n) {
  return 2 * (n - 1) / n;
}

/// The reduction of everybody's elements from `first` on.
Pattern::Source all_ranks(const Cell& c, std::int64_t first = 0) {
  return {0, c.ranks, first};
}
Pattern::Source one_rank(int rank, std::int64_t first = 0) {
  return {rank, rank + 1, first};
}

std::vector<Piece> blocks_in_rank_order(const Cell& c, std::int64_t first = 0) {
  std::vector<Piece> pieces;
  for (int r = 0; r < c.ranks; ++r)
    pieces.push_back({r * c.block(), c.block(), one_rank(r, first)});
  return pieces;
}

constexpr std::array<Collective, 12> table{{
    {.name = "all_reduce",
     .operation = Operation::all_reduce,
     .reduces = true,
     .rooted = false,
     .out_of_place = true,
     .in_place = true,
     .divides = false,
     .size_is = "the array of each rank",
     .factor_text = "2(n-1)/n",
     .factor = twice_all_but_own,
     .extent =
         [](const Cell& c) {
           return Extent{c.count, c.count};
         },
     .result =
         [](const Cell& c) {
           return std::vector<Piece>{{0, c.count, all_ranks(c)}};
         },
     .call = [](ProcessGroup& g, const Arrays& a, ReduceOp op, int,
                const CallOptions& o) { g.all_reduce(a.in, a.out, op, o); }},
    {.name = "broadcast",
     .operation = Operation::broadcast,
     .reduces = false,
     .rooted = true,
     .out_of_place = false,
     .in_place = true,
     .divides = false,
     .size_is = "the array of each rank",
     .factor_text = "1",
     .factor = whole,
     .extent =
         [](const Cell& c) {
           return Extent{c.is_root() ? c.count : 0, c.count};
         },
     .result =
         [](const Cell& c) {
           return std::vector<Piece>{{0, c.count, one_rank(c.root)}};
         },
     .call = [](ProcessGroup& g, const Arrays& a, ReduceOp, int root,
                const CallOptions& o) { g.broadcast(a.out, root, o); }},
    {.name = "reduce",
     .operation = Operation::reduce,
     .reduces = true,
     .rooted = true,
     .out_of_place = true,
     .in_place = true,
     .divides = false,
     .size_is = "the array of each rank",
     .factor_text = "1",
     .factor = whole,
     .extent =
         [](const Cell& c) {
           return Extent{c.count, c.is_root() ? c.count : 0};
         },
     .result =
         [](const Cell& c) {
           return c.is_root() ? std::vector<Piece>{{0, c.count, all_ranks(c)}}
                              : std::vector<Piece>();
         },
     .call = [](ProcessGroup& g, const Arrays& a, ReduceOp op, int root,
                const CallOptions& o) { g.reduce(a.in, a.out, root, op, o); }},
    {.name = "all_gather",
     .operation = Operation::all_gather,
     .reduces = false,
     .rooted = false,
     .out_of_place = true,
     .in_place = true,
     .divides = true,
     .size_is = "the gathered array; each rank gives S/n",
     .factor_text = "(n-1)/n",
     .factor = all_but_own,
     .extent =
         [](const Cell& c) {
           return Extent{c.block(), c.count, c.rank * c.block(), 0};
         },
     .result = [](const Cell& c) { return blocks_in_rank_order(c); },
     .call = [](ProcessGroup& g, const Arrays& a, ReduceOp, int,
                const CallOptions& o) { g.all_gather(a.in, a.out, {}, o); }},
    {.name = "reduce_scatter",
     .operation = Operation::reduce_scatter,
     .reduces = true,
     .rooted = false,
     .out_of_place = true,
     .in_place = true,
     .divides = true,
     .size_is = "the array of each rank; each gets S/n of the result",
     .factor_text = "(n-1)/n",
     .factor = all_but_own,
     .extent =
         [](const Cell& c) {
           return Extent{c.count, c.block(), 0, c.rank * c.block()};
         },
     .result =
         [](const Cell& c) {
           return std::vector<Piece>{{0, c.block(), all_ranks(c, c.rank * c.block())}};
         },
     .call = [](ProcessGroup& g, const Arrays& a, ReduceOp op, int,
                const CallOptions& o) { g.reduce_scatter(a.in, a.out, {}, op, o); }},
    {.name = "all_to_all",
     .operation = Operation::all_to_all,
     .reduces = false,
     .rooted = false,
     .out_of_place = true,
     .in_place = false,
     .divides = true,
     .size_is = "the array of each rank; S/n goes to each",
     .factor_text = "(n-1)/n",
     .factor = all_but_own,
     .extent =
         [](const Cell& c) {
           return Extent{c.count, c.count};
         },
     .result = [](const Cell& c) { return blocks_in_rank_order(c, c.rank * c.block()); },
     .call = [](ProcessGroup& g, const Arrays& a, ReduceOp, int,
                const CallOptions& o) { g.all_to_all(a.in, a.out, {}, {}, o); }},
    {.name = "gather",
     .operation = Operation::gather,
     .reduces = false,
     .rooted = true,
     .out_of_place = true,
     .in_place = true,
     .divides = true,
     .size_is = "the gathered array of the root; each rank gives S/n",
     .factor_text = "(n-1)/n",
     .factor = all_but_own,
     .extent =
         [](const Cell& c) {
           return c.is_root() ? Extent{c.block(), c.count, c.rank * c.block(), 0}
                              : Extent{c.block(), 0};
         },
     .result =
         [](const Cell& c) { return c.is_root() ? blocks_in_rank_order(c) : std::vector<Piece>(); },
     .call = [](ProcessGroup& g, const Arrays& a, ReduceOp, int root,
                const CallOptions& o) { g.gather(a.in, a.out, root, {}, o); }},
    {.name = "scatter",
     .operation = Operation::scatter,
     .reduces = false,
     .rooted = true,
     .out_of_place = true,
     .in_place = true,
     .divides = true,
     .size_is = "the array of the root; each rank gets S/n",
     .factor_text = "(n-1)/n",
     .factor = all_but_own,
     .extent =
         [](const Cell& c) {
           return c.is_root() ? Extent{c.count, c.block(), 0, c.rank * c.block()}
                              : Extent{0, c.block()};
         },
     .result =
         [](const Cell& c) {
           return std::vector<Piece>{{0, c.block(), one_rank(c.root, c.rank * c.block())}};
         },
     .call = [](ProcessGroup& g, const Arrays& a, ReduceOp, int root,
                const CallOptions& o) { g.scatter(a.in, a.out, root, {}, o); }},
    {.name = "scan",
     .operation = Operation::scan,
     .reduces = true,
     .rooted = false,
     .out_of_place = true,
     .in_place = true,
     .divides = false,
     .size_is = "the array of each rank",
     .factor_text = "1",
     .factor = whole,
     .extent =
         [](const Cell& c) {
           return Extent{c.count, c.count};
         },
     .result =
         [](const Cell& c) {
           return std::vector<Piece>{{0, c.count, {0, c.rank + 1, 0}}};
         },
     .call = [](ProcessGroup& g, const Arrays& a, ReduceOp op, int,
                const CallOptions& o) { g.scan(a.in, a.out, op, o); }},
    {.name = "exclusive_scan",
     .operation = Operation::exclusive_scan,
     .reduces = true,
     .rooted = false,
     .out_of_place = true,
     .in_place = true,
     .divides = false,
     .size_is = "the array of each rank",
     .factor_text = "1",
     .factor = whole,
     .extent =
         [](const Cell& c) {
           return Extent{c.count, c.count};
         },
     .result =
         [](const Cell& c) {
           return std::vector<Piece>{{0, c.count, {0, c.rank, 0}}};
         },
     .call = [](ProcessGroup& g, const Arrays& a, ReduceOp op, int,
                const CallOptions& o) { g.exclusive_scan(a.in, a.out, op, o); }},
    {.name = "send_recv",
     .operation = Operation::send,
     .reduces = false,
     .rooted = false,
     .out_of_place = true,
     .in_place = false,
     .divides = false,
     .size_is = "what each rank sends to the next and gets from the one before",
     .factor_text = "1",
     .factor = whole,
     .extent =
         [](const Cell& c) {
           return Extent{c.count, c.count};
         },
     .result =
         [](const Cell& c) {
           return std::vector<Piece>{{0, c.count, one_rank((c.rank + c.ranks - 1) % c.ranks)}};
         },
     .call =
         [](ProcessGroup& g, const Arrays& a, ReduceOp, int, const CallOptions& o) {
           const int n = g.size();
           Work receiving = g.recv_async(a.out, (g.rank() + n - 1) % n, 0, o);
           Work sending = g.send_async(a.in, (g.rank() + 1) % n, 0, o);
           sending.wait();
           receiving.wait();
         }},
    {.name = "barrier",
     .operation = Operation::barrier,
     .reduces = false,
     .rooted = false,
     .out_of_place = false,
     .in_place = false,
     .divides = false,
     .size_is = "no data; one row",
     .factor_text = "-",
     .factor = whole,
     .extent = [](const Cell&) { return Extent{}; },
     .result = [](const Cell&) { return std::vector<Piece>(); },
     .call = [](ProcessGroup& g, const Arrays&, ReduceOp, int,
                const CallOptions& o) { g.barrier(o); }},
}};

}  // namespace

std::span<const Collective> collectives() noexcept {
  return table;
}

const Collective* find_collective(std::string_view name) noexcept {
  for (const Collective& collective : table)
    if (collective.name == name) return &collective;
  return nullptr;
}

bool can_reduce(DType dtype, ReduceOp::Kind op) noexcept {
  switch (op) {
    case ReduceOp::Kind::avg:
      return dtype != DType::boolean;
    case ReduceOp::Kind::band:
    case ReduceOp::Kind::bor:
    case ReduceOp::Kind::bxor:
      return !is_float(dtype);
    case ReduceOp::Kind::premul_sum:
      return is_float(dtype);
    case ReduceOp::Kind::sum:
    case ReduceOp::Kind::product:
    case ReduceOp::Kind::min:
    case ReduceOp::Kind::max:
      break;
  }
  return true;
}

}  // namespace tutti::tool
