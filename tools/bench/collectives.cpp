#include "bench/collectives.hpp"

#include <algorithm>
#include <array>

#include <tutti/work.hpp>

#include "bench/gather_calls.hpp"
#include "bench/messages.hpp"

namespace tutti::tool {
namespace {

double share(std::int64_t part, const Cell& c) {
  return static_cast<double>(part) / static_cast<double>(c.count);
}

/// all_reduce: S is not divided into blocks.
constexpr Factor twice_all_but_own{[](const Cell& c) { return 2.0 * (c.ranks - 1) / c.ranks; },
                                   "2(n-1)/n"};
constexpr Factor all_but_least{
    [](const Cell& c) { return share(c.count - std::ranges::min(c.blocks.counts()), c); },
    "(n-1)/n", "(S - min b)/S"};
constexpr Factor all_but_root{[](const Cell& c) { return share(c.count - c.blocks[c.root], c); },
                              "(n-1)/n", "(S - b_root)/S"};
/// Rank r sends every block except block r, and receives block r of every other rank.
constexpr Factor exchanged{[](const Cell& c) {
                             return std::max(all_but_least.of(c),
                                             share(c.blocks.max(), c) * (c.ranks - 1));
                           },
                           "(n-1)/n", "max of (S - b_r)/S, (n-1)b_r/S"};
constexpr Factor none{[](const Cell&) { return 0.0; }, "-"};

Pattern::Source one_rank(int rank, std::int64_t first = 0) {
  return {rank, rank + 1, first};
}
Pattern::Source first_ranks(int ranks) {
  return {0, ranks};
}
Pattern::Source all_ranks(const Cell& c) {
  return first_ranks(c.ranks);
}
Pattern::Source root(const Cell& c) {
  return one_rank(c.root);
}

std::vector<Piece> blocks_in_rank_order(const Cell& c) {
  std::vector<Piece> pieces;
  for (int r = 0; r < c.ranks; ++r)
    pieces.push_back({c.blocks.offset(r), c.blocks[r], one_rank(r)});
  return pieces;
}

/// The rows of every rank, each padded with zeros to the longest.
std::vector<Piece> padded_blocks(const Cell& c) {
  const std::int64_t longest = c.blocks.max();
  std::vector<Piece> pieces;
  for (int r = 0; r < c.ranks; ++r) {
    pieces.push_back({r * longest, c.blocks[r], one_rank(r)});
    pieces.push_back({r * longest + c.blocks[r], longest - c.blocks[r], {}});
  }
  return pieces;
}

std::vector<Piece> own_block_of_each(const Cell& c) {
  std::vector<Piece> pieces;
  for (int r = 0; r < c.ranks; ++r)
    pieces.push_back({r * c.block(), c.block(), one_rank(r, c.at())});
  return pieces;
}

/// Every rank sends block r to rank r, so all blocks that a rank receives have equal sizes.
Rows received(const Cell& cell) {
  return cell.uneven ? Rows(cell.block()) : Rows();
}

void pass_on(ProcessGroup& group, const Arrays& arrays, const How& how) {
  const int n = group.size();
  Work receiving = group.recv_async(arrays.out, (group.rank() + n - 1) % n, 0, how.options);
  Work sending = group.send_async(arrays.in, (group.rank() + 1) % n, 0, how.options);
  sending.wait();
  receiving.wait();
}

Work start_to_pass_on(ProcessGroup& group, const Arrays& arrays, const How& how) {
  const int n = group.size();
  return group.sendrecv_async(arrays.in, (group.rank() + 1) % n, arrays.out,
                              (group.rank() + n - 1) % n, 0, how.options);
}

// A row lists only the fields that differ from the defaults of Collective.
constexpr std::array<Collective, 19> table{{
    {.name = "all_reduce",
     .operation = Operation::all_reduce,
     .reduces = true,
     .in_place = true,
     .factor = twice_all_but_own,
     .source = all_ranks,
     .call = [](ProcessGroup& g, const Arrays& a,
                const How& h) { g.all_reduce(a.in, a.out, h.op, h.options); },
     .start = [](ProcessGroup& g, const Arrays& a,
                 const How& h) { return g.all_reduce_async(a.in, a.out, h.op, h.options); }},
    {.name = "broadcast",
     .operation = Operation::broadcast,
     .rooted = true,
     .out_of_place = false,
     .in_place = true,
     .in = Part::whole_of_root,
     .source = root,
     .call = [](ProcessGroup& g, const Arrays& a,
                const How& h) { g.broadcast(a.out, h.cell.root, h.options); },
     .start = [](ProcessGroup& g, const Arrays& a,
                 const How& h) { return g.broadcast_async(a.out, h.cell.root, h.options); }},
    {.name = "reduce",
     .operation = Operation::reduce,
     .reduces = true,
     .rooted = true,
     .in_place = true,
     .out = Part::whole_of_root,
     .source = all_ranks,
     .call = [](ProcessGroup& g, const Arrays& a,
                const How& h) { g.reduce(a.in, a.out, h.cell.root, h.op, h.options); },
     .start =
         [](ProcessGroup& g, const Arrays& a, const How& h) {
           return g.reduce_async(a.in, a.out, h.cell.root, h.op, h.options);
         }},
    {.name = "all_gather",
     .operation = Operation::all_gather,
     .in_place = true,
     .size_is = "the gathered array; each rank gives S/n",
     .factor = all_but_least,
     .in = Part::block,
     .pieces = blocks_in_rank_order,
     .call = [](ProcessGroup& g, const Arrays& a,
                const How& h) { g.all_gather(a.in, a.out, h.cell.rows(), h.options); },
     .start =
         [](ProcessGroup& g, const Arrays& a, const How& h) {
           return g.all_gather_async(a.in, a.out, h.cell.rows(), h.options);
         }},
    {.name = "all_gather_rows",
     .operation = Operation::all_gather,
     .size_is = "as all_gather; no rank knows the others' S/n before",
     .factor = all_but_least,
     .in = Part::block,
     .pieces = blocks_in_rank_order,
     .call = gather_unknown_rows},
    {.name = "all_gather_padded",
     .operation = Operation::all_gather,
     .size_is = "as all_gather_rows; each padded to the longest",
     .factor = all_but_least,
     .in = Part::block,
     .out = Part::padded,
     .pieces = padded_blocks,
     .call = gather_padded_rows},
    {.name = "reduce_scatter",
     .operation = Operation::reduce_scatter,
     .reduces = true,
     .in_place = true,
     .size_is = "the array of each rank; each gets S/n of the result",
     .factor = all_but_least,
     .out = Part::block,
     .source = all_ranks,
     .call = [](ProcessGroup& g, const Arrays& a,
                const How& h) { g.reduce_scatter(a.in, a.out, h.cell.rows(), h.op, h.options); },
     .start =
         [](ProcessGroup& g, const Arrays& a, const How& h) {
           return g.reduce_scatter_async(a.in, a.out, h.cell.rows(), h.op, h.options);
         }},
    {.name = "all_to_all",
     .operation = Operation::all_to_all,
     .size_is = "the array of each rank; S/n goes to each",
     .factor = exchanged,
     .out = Part::own_of_each,
     .pieces = own_block_of_each,
     .call =
         [](ProcessGroup& g, const Arrays& a, const How& h) {
           g.all_to_all(a.in, a.out, h.cell.rows(), received(h.cell), h.options);
         },
     .start =
         [](ProcessGroup& g, const Arrays& a, const How& h) {
           return g.all_to_all_async(a.in, a.out, h.cell.rows(), received(h.cell), h.options);
         }},
    {.name = "gather",
     .operation = Operation::gather,
     .rooted = true,
     .in_place = true,
     .size_is = "the gathered array of the root; each rank gives S/n",
     .factor = all_but_root,
     .in = Part::block,
     .out = Part::whole_of_root,
     .pieces = blocks_in_rank_order,
     .call = [](ProcessGroup& g, const Arrays& a,
                const How& h) { g.gather(a.in, a.out, h.cell.root, h.cell.rows(), h.options); },
     .start =
         [](ProcessGroup& g, const Arrays& a, const How& h) {
           return g.gather_async(a.in, a.out, h.cell.root, h.cell.rows(), h.options);
         }},
    {.name = "scatter",
     .operation = Operation::scatter,
     .rooted = true,
     .in_place = true,
     .size_is = "the array of the root; each rank gets S/n",
     .factor = all_but_root,
     .in = Part::whole_of_root,
     .out = Part::block,
     .source = root,
     .call = [](ProcessGroup& g, const Arrays& a,
                const How& h) { g.scatter(a.in, a.out, h.cell.root, h.cell.rows(), h.options); },
     .start =
         [](ProcessGroup& g, const Arrays& a, const How& h) {
           return g.scatter_async(a.in, a.out, h.cell.root, h.cell.rows(), h.options);
         }},
    {.name = "scan",
     .operation = Operation::scan,
     .reduces = true,
     .in_place = true,
     .source = [](const Cell& c) { return first_ranks(c.rank + 1); },
     .call = [](ProcessGroup& g, const Arrays& a,
                const How& h) { g.scan(a.in, a.out, h.op, h.options); },
     .start = [](ProcessGroup& g, const Arrays& a,
                 const How& h) { return g.scan_async(a.in, a.out, h.op, h.options); }},
    {.name = "exclusive_scan",
     .operation = Operation::exclusive_scan,
     .reduces = true,
     .in_place = true,
     .source = [](const Cell& c) { return first_ranks(c.rank); },
     .call = [](ProcessGroup& g, const Arrays& a,
                const How& h) { g.exclusive_scan(a.in, a.out, h.op, h.options); },
     .start = [](ProcessGroup& g, const Arrays& a,
                 const How& h) { return g.exclusive_scan_async(a.in, a.out, h.op, h.options); }},
    {.name = "send_recv",
     .operation = Operation::send,
     .size_is = "sent to the next rank, received from the one before",
     .source = [](const Cell& c) { return one_rank((c.rank + c.ranks - 1) % c.ranks); },
     .call = pass_on,
     .start = start_to_pass_on},
    {.name = "ping_pong",
     .operation = Operation::send,
     .messages = [](const Cell&) { return std::int64_t{2}; },
     .size_is = "a message; the time is half of a round trip",
     .source = [](const Cell& c) { return one_rank(partner(c)); },
     .call = ping_pong},
    {.name = "bandwidth",
     .operation = Operation::send,
     .messages = window,
     .size_is = "a message; up to 64 in flight, then an answer",
     .out = Part::window_or_one,
     .pieces = window_or_acknowledgement,
     .call = send_window},
    {.name = "two_way_bandwidth",
     .operation = Operation::send,
     .messages = window,
     .ways = 2,
     .size_is = "a message; up to 64 in flight in each direction",
     .out = Part::window,
     .pieces = window_of_partner,
     .call = exchange_windows},
    {.name = "barrier",
     .operation = Operation::barrier,
     .out_of_place = false,
     .size_is = "no data; one row",
     .factor = none,
     .in = Part::nothing,
     .out = Part::nothing,
     .call = [](ProcessGroup& g, const Arrays&, const How& h) { g.barrier(h.options); },
     .start = [](ProcessGroup& g, const Arrays&,
                 const How& h) { return g.barrier_async(h.options); }},
    {.name = "create",
     .operation = Operation::barrier,  // Every backend that has one can be created.
     .out_of_place = false,
     .makes_group = true,
     .size_is = "no data; a group of all ranks is made",
     .factor = none,
     .in = Part::nothing,
     .out = Part::nothing,
     .call = [](ProcessGroup&, const Arrays&,
                const How& h) { h.made->emplace(ProcessGroup::create(*h.group)); }},
    {.name = "split",
     .operation = Operation::barrier,
     .out_of_place = false,
     .makes_group = true,
     .size_is = "no data; all ranks split off together",
     .factor = none,
     .in = Part::nothing,
     .out = Part::nothing,
     .call = [](ProcessGroup& g, const Arrays&,
                const How& h) { *h.made = g.split(0, g.rank(), h.options); }},
}};

std::int64_t elements(Part part, const Cell& cell) {
  switch (part) {
    case Part::nothing:
      return 0;
    case Part::whole:
      return cell.count;
    case Part::whole_of_root:
      return cell.is_root() ? cell.count : 0;
    case Part::block:
      return cell.block();
    case Part::own_of_each:
      return cell.block() * cell.ranks;
    case Part::padded:
      return cell.blocks.max() * cell.ranks;
    case Part::window_or_one:
      if (begins(cell)) return std::min<std::int64_t>(cell.count, 1);
      break;
    case Part::window:
      break;
  }
  return window(cell) * cell.count;
}

}  // namespace

Extent Collective::extent(const Cell& cell) const {
  Extent extent{elements(in, cell), elements(out, cell)};
  // In place, a block lies at its offset in the whole array.
  if (in == Part::block && extent.out != 0) extent.in_at = cell.at();
  if (out == Part::block && extent.in != 0) extent.out_at = cell.at();
  return extent;
}

std::vector<Piece> Collective::result(const Cell& cell) const {
  if (out == Part::nothing || (out == Part::whole_of_root && !cell.is_root())) return {};
  if (pieces != nullptr) return pieces(cell);
  Piece piece{0, elements(out, cell), source(cell)};
  if (out == Part::block) piece.source.first = cell.at();
  return {piece};
}

std::span<const Collective> collectives() noexcept {
  return table;
}

const Collective* find_collective(std::string_view name) noexcept {
  for (const Collective& collective : table)
    if (collective.name == name) return &collective;
  return nullptr;
}

}  // namespace tutti::tool
