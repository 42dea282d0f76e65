#include "bench/collectives.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include <tutti/gather.hpp>
#include <tutti/work.hpp>

#include "common/exit_code.hpp"

namespace tutti::tool {
namespace {

/// all_reduce: S does not come in blocks.
double twice_all_but_own(const Cell& c) {
  return 2.0 * (c.ranks - 1) / c.ranks;
}
double share(std::int64_t part, const Cell& c) {
  return static_cast<double>(part) / static_cast<double>(c.count);
}
double all_but_least(const Cell& c) {
  return share(c.count - std::ranges::min(c.blocks.counts()), c);
}
double all_but_root(const Cell& c) {
  return share(c.count - c.blocks[c.root], c);
}
/// Rank r sends everything but block r, and gets block r from everybody else.
double exchanged(const Cell& c) {
  return std::max(all_but_least(c), share(c.blocks.max(), c) * (c.ranks - 1));
}

/// The reduction of everybody's elements from `first` on.
Pattern::Source all_ranks(const Cell& c, std::int64_t first = 0) {
  return {0, c.ranks, first};
}
Pattern::Source one_rank(int rank, std::int64_t first = 0) {
  return {rank, rank + 1, first};
}

std::vector<Piece> blocks_in_rank_order(const Cell& c) {
  std::vector<Piece> pieces;
  for (int r = 0; r < c.ranks; ++r)
    pieces.push_back({c.blocks.offset(r), c.blocks[r], one_rank(r)});
  return pieces;
}

/// Gives a call the array that was prepared for its result.
class PreparedMemory final : public Memory {
 public:
  PreparedMemory(const TensorView& array, Memory& copies) : array_(array), copies_(copies) {}
  Device device() const noexcept override { return array_.device; }
  void* allocate(std::size_t bytes, Stream) override {
    if (bytes != array_.bytes())
      throw Failure(Exit::wrong_data,
                    fmt::format("a result of {} bytes, expected {}", bytes, array_.bytes()));
    return array_.data;
  }
  void release(void*, std::size_t, Stream) noexcept override {}
  void copy(void* to, const void* from, std::size_t bytes, Stream stream) override {
    copies_.copy(to, from, bytes, stream);
  }

 private:
  TensorView array_;
  Memory& copies_;
};

void check_layout(std::string_view name, const RowLayout& found, const Cell& cell) {
  if (found != cell.blocks)
    throw Failure(Exit::wrong_data, fmt::format("{} says that the ranks have {} rows, expected {}",
                                                name, to_string(found), to_string(cell.blocks)));
}

void gather_unknown_rows(ProcessGroup& group, const Arrays& arrays, const How& how) {
  PreparedMemory memory(arrays.out, group.memory());
  const GatheredRows all =
      all_gather_rows(group, arrays.in, {.memory = &memory, .call = how.options});
  check_layout("all_gather_rows", all.layout, how.cell);
}

void gather_padded_rows(ProcessGroup& group, const Arrays& arrays, const How& how) {
  PreparedMemory memory(arrays.out, group.memory());
  const PaddedRows all =
      all_gather_padded(group, arrays.in, 0, {.memory = &memory, .call = how.options});
  check_layout("all_gather_padded", all.layout, how.cell);
}

/// The rows of every rank, and zeros behind them up to the longest.
std::vector<Piece> padded_blocks(const Cell& c) {
  const std::int64_t longest = c.blocks.max();
  std::vector<Piece> pieces;
  for (int r = 0; r < c.ranks; ++r) {
    pieces.push_back({r * longest, c.blocks[r], one_rank(r)});
    pieces.push_back({r * longest + c.blocks[r], longest - c.blocks[r], {}});
  }
  return pieces;
}

/// The factor of operations that cut S into blocks, in words.
constexpr std::string_view all_but_own = "(n-1)/n";
constexpr std::string_view least_text = "(S - min b)/S";
constexpr std::string_view root_text = "(S - b_root)/S";

// Each row has only what differs from the defaults of Collective.
constexpr std::array<Collective, 14> table{{
    {.name = "all_reduce",
     .operation = Operation::all_reduce,
     .reduces = true,
     .in_place = true,
     .factor_text = "2(n-1)/n",
     .factor = twice_all_but_own,
     .result =
         [](const Cell& c) {
           return std::vector<Piece>{{0, c.count, all_ranks(c)}};
         },
     .call = [](ProcessGroup& g, const Arrays& a,
                const How& h) { g.all_reduce(a.in, a.out, h.op, h.options); }},
    {.name = "broadcast",
     .operation = Operation::broadcast,
     .rooted = true,
     .out_of_place = false,
     .in_place = true,
     .extent =
         [](const Cell& c) {
           return Extent{c.is_root() ? c.count : 0, c.count};
         },
     .result =
         [](const Cell& c) {
           return std::vector<Piece>{{0, c.count, one_rank(c.root)}};
         },
     .call = [](ProcessGroup& g, const Arrays& a,
                const How& h) { g.broadcast(a.out, h.cell.root, h.options); }},
    {.name = "reduce",
     .operation = Operation::reduce,
     .reduces = true,
     .rooted = true,
     .in_place = true,
     .extent =
         [](const Cell& c) {
           return Extent{c.count, c.is_root() ? c.count : 0};
         },
     .result =
         [](const Cell& c) {
           return c.is_root() ? std::vector<Piece>{{0, c.count, all_ranks(c)}}
                              : std::vector<Piece>();
         },
     .call = [](ProcessGroup& g, const Arrays& a,
                const How& h) { g.reduce(a.in, a.out, h.cell.root, h.op, h.options); }},
    {.name = "all_gather",
     .operation = Operation::all_gather,
     .in_place = true,
     .size_is = "the gathered array; each rank gives S/n",
     .factor_text = all_but_own,
     .uneven_factor_text = least_text,
     .factor = all_but_least,
     .extent =
         [](const Cell& c) {
           return Extent{c.block(), c.count, c.at(), 0};
         },
     .result = blocks_in_rank_order,
     .call = [](ProcessGroup& g, const Arrays& a,
                const How& h) { g.all_gather(a.in, a.out, h.cell.rows(), h.options); }},
    {.name = "all_gather_rows",
     .operation = Operation::all_gather,
     .size_is = "as all_gather; no rank knows the others' S/n before",
     .factor_text = all_but_own,
     .uneven_factor_text = least_text,
     .factor = all_but_least,
     .extent =
         [](const Cell& c) {
           return Extent{c.block(), c.count};
         },
     .result = blocks_in_rank_order,
     .call = gather_unknown_rows},
    {.name = "all_gather_padded",
     .operation = Operation::all_gather,
     .size_is = "as all_gather_rows; each padded to the longest",
     .factor_text = all_but_own,
     .uneven_factor_text = least_text,
     .factor = all_but_least,
     .extent =
         [](const Cell& c) {
           return Extent{c.block(), c.blocks.max() * c.ranks};
         },
     .result = padded_blocks,
     .call = gather_padded_rows},
    {.name = "reduce_scatter",
     .operation = Operation::reduce_scatter,
     .reduces = true,
     .in_place = true,
     .size_is = "the array of each rank; each gets S/n of the result",
     .factor_text = all_but_own,
     .uneven_factor_text = least_text,
     .factor = all_but_least,
     .extent =
         [](const Cell& c) {
           return Extent{c.count, c.block(), 0, c.at()};
         },
     .result =
         [](const Cell& c) {
           return std::vector<Piece>{{0, c.block(), all_ranks(c, c.at())}};
         },
     .call = [](ProcessGroup& g, const Arrays& a,
                const How& h) { g.reduce_scatter(a.in, a.out, h.cell.rows(), h.op, h.options); }},
    {.name = "all_to_all",
     .operation = Operation::all_to_all,
     .size_is = "the array of each rank; S/n goes to each",
     .factor_text = all_but_own,
     .uneven_factor_text = "max of (S - b_r)/S, (n-1)b_r/S",
     .factor = exchanged,
     .extent =
         [](const Cell& c) {
           return Extent{c.count, c.block() * c.ranks};
         },
     .result =
         [](const Cell& c) {
           std::vector<Piece> pieces;
           for (int r = 0; r < c.ranks; ++r)
             pieces.push_back({r * c.block(), c.block(), one_rank(r, c.at())});
           return pieces;
         },
     .call =
         [](ProcessGroup& g, const Arrays& a, const How& h) {
           // Everybody sends block r to rank r, so what comes to this rank is alike.
           g.all_to_all(a.in, a.out, h.cell.rows(), h.cell.uneven ? Rows(h.cell.block()) : Rows(),
                        h.options);
         }},
    {.name = "gather",
     .operation = Operation::gather,
     .rooted = true,
     .in_place = true,
     .size_is = "the gathered array of the root; each rank gives S/n",
     .factor_text = all_but_own,
     .uneven_factor_text = root_text,
     .factor = all_but_root,
     .extent =
         [](const Cell& c) {
           return c.is_root() ? Extent{c.block(), c.count, c.at(), 0} : Extent{c.block(), 0};
         },
     .result =
         [](const Cell& c) { return c.is_root() ? blocks_in_rank_order(c) : std::vector<Piece>(); },
     .call = [](ProcessGroup& g, const Arrays& a,
                const How& h) { g.gather(a.in, a.out, h.cell.root, h.cell.rows(), h.options); }},
    {.name = "scatter",
     .operation = Operation::scatter,
     .rooted = true,
     .in_place = true,
     .size_is = "the array of the root; each rank gets S/n",
     .factor_text = all_but_own,
     .uneven_factor_text = root_text,
     .factor = all_but_root,
     .extent =
         [](const Cell& c) {
           return c.is_root() ? Extent{c.count, c.block(), 0, c.at()} : Extent{0, c.block()};
         },
     .result =
         [](const Cell& c) {
           return std::vector<Piece>{{0, c.block(), one_rank(c.root, c.at())}};
         },
     .call = [](ProcessGroup& g, const Arrays& a,
                const How& h) { g.scatter(a.in, a.out, h.cell.root, h.cell.rows(), h.options); }},
    {.name = "scan",
     .operation = Operation::scan,
     .reduces = true,
     .in_place = true,
     .result =
         [](const Cell& c) {
           return std::vector<Piece>{{0, c.count, {0, c.rank + 1, 0}}};
         },
     .call = [](ProcessGroup& g, const Arrays& a,
                const How& h) { g.scan(a.in, a.out, h.op, h.options); }},
    {.name = "exclusive_scan",
     .operation = Operation::exclusive_scan,
     .reduces = true,
     .in_place = true,
     .result =
         [](const Cell& c) {
           return std::vector<Piece>{{0, c.count, {0, c.rank, 0}}};
         },
     .call = [](ProcessGroup& g, const Arrays& a,
                const How& h) { g.exclusive_scan(a.in, a.out, h.op, h.options); }},
    {.name = "send_recv",
     .operation = Operation::send,
     .size_is = "sent to the next rank, received from the one before",
     .result =
         [](const Cell& c) {
           return std::vector<Piece>{{0, c.count, one_rank((c.rank + c.ranks - 1) % c.ranks)}};
         },
     .call =
         [](ProcessGroup& g, const Arrays& a, const How& h) {
           const int n = g.size();
           Work receiving = g.recv_async(a.out, (g.rank() + n - 1) % n, 0, h.options);
           Work sending = g.send_async(a.in, (g.rank() + 1) % n, 0, h.options);
           sending.wait();
           receiving.wait();
         }},
    {.name = "barrier",
     .operation = Operation::barrier,
     .out_of_place = false,
     .size_is = "no data; one row",
     .factor_text = "-",
     .extent = [](const Cell&) { return Extent{}; },
     .result = [](const Cell&) { return std::vector<Piece>(); },
     .call = [](ProcessGroup& g, const Arrays&, const How& h) { g.barrier(h.options); }},
}};

}  // namespace

Extent whole_arrays(const Cell& cell) {
  return {cell.count, cell.count};
}

double crosses_once(const Cell&) {
  return 1;
}

std::span<const Collective> collectives() noexcept {
  return table;
}

const Collective* find_collective(std::string_view name) noexcept {
  for (const Collective& collective : table)
    if (collective.name == name) return &collective;
  return nullptr;
}

bool can_reduce(DType dtype, ReduceOp::Kind op) noexcept {
  if (is_complex(dtype))
    return op == ReduceOp::Kind::sum || op == ReduceOp::Kind::avg ||
           op == ReduceOp::Kind::premul_sum;
  switch (op) {
    case ReduceOp::Kind::custom:
      return false;
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
