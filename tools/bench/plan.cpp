#include "bench/plan.hpp"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "bench/workspace.hpp"
#include "common/exit_code.hpp"
#include "common/text.hpp"

namespace tutti::tool {
namespace {

/// S must be a multiple of this many bytes.
std::int64_t granularity(const Block& block, int ranks) {
  const auto width = static_cast<std::int64_t>(size_of(block.dtype));
  return block.counts && block.counts->is_even() ? width * ranks : width;
}

/// Returns a size in bytes. If the call does not accept it, rounds a size of a range up, and
/// refuses any other size.
std::int64_t call_bytes(const Size& size, const Block& block, int ranks) {
  const std::int64_t bytes = bytes_of(size, block.dtype);
  const std::int64_t unit = granularity(block, ranks);
  const std::int64_t below = bytes / unit * unit;
  if (bytes == below) return bytes;
  if (below > std::numeric_limits<std::int64_t>::max() - unit)
    refuse("size '{}': the next multiple of {} bytes does not fit in 63 bits", size.token, unit);
  if (size.ranged) return below + unit;
  const std::string near = below == 0
                               ? fmt::format("the next is {}", unit)
                               : fmt::format("the nearest are {} and {}", below, below + unit);
  refuse("size '{}': {} of {} on {} ranks needs a multiple of {} bytes; {}", size.token,
         block.collective->name, name_of(block.dtype), ranks, unit, near);
}

std::vector<std::int64_t> block_sizes(const Request& request, const Block& block, int ranks) {
  if (!block.collective->moves_data()) return {0};
  std::vector<std::int64_t> sizes;
  for (const Size& size : request.sizes.empty() ? parse_sizes(default_sizes) : request.sizes)
    sizes.push_back(call_bytes(size, block, ranks));
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  if (request.order == Order::random)
    std::shuffle(sizes.begin(), sizes.end(), std::mt19937_64(request.seed));
  return sizes;
}

/// The reason why no backend has this reduction; empty if one may have it.
std::string_view impossible(DType dtype, ReduceOp::Kind op) {
  if (is_complex(dtype) && op >= ReduceOp::Kind::prod && op <= ReduceOp::Kind::bxor)
    return "products, orders and bits of complex numbers";
  switch (op) {
    case ReduceOp::Kind::avg:
      return dtype == DType::boolean ? "avg of booleans" : "";
    case ReduceOp::Kind::band:
    case ReduceOp::Kind::bor:
    case ReduceOp::Kind::bxor:
      return is_float(dtype) ? "bitwise operations of floats" : "";
    case ReduceOp::Kind::premul_sum:
      return is_float(dtype) || is_complex(dtype) ? "" : "premul_sum of integers and booleans";
    case ReduceOp::Kind::sum:
    case ReduceOp::Kind::prod:
    case ReduceOp::Kind::min:
    case ReduceOp::Kind::max:
    case ReduceOp::Kind::custom:  // A command line cannot pass a function.
      break;
  }
  return "";
}

/// The reason why the call does not exist; empty if it exists. Refuses a missing call, unless only
/// an "all" included it.
std::string_view missing(const Request& request, const Collective& collective, DType dtype,
                         ReduceOp::Kind op) {
  std::string_view why = impossible(dtype, op);
  bool asked = !request.dtypes.all && !request.ops.all;
  const bool scans =
      collective.operation == Operation::scan || collective.operation == Operation::exclusive_scan;
  if (why.empty() && scans && op == ReduceOp::Kind::avg) {
    why = "avg in scans";
    asked = !request.collectives.all && !request.ops.all;
  }
  if (asked && !why.empty())
    refuse(
        "--op {}: {} of {} is not possible, because there are no {}; leave it out or use another "
        "--dtype",
        tutti::name_of(op), collective.name, tutti::name_of(dtype), why);
  return why;
}

/// Refuses options that none of the collectives uses.
void check_options_have_use(const Request& request) {
  const auto any = [&](auto use) {
    return std::any_of(request.collectives.values.begin(), request.collectives.values.end(), use);
  };
  if (request.ops.given && !any([](const Collective* c) { return c->reduces; }))
    refuse("--op: none of the chosen collectives reduces; leave it out");
  if ((request.root || request.all_roots) && !any([](const Collective* c) { return c->rooted; }))
    refuse("--root: none of the chosen collectives has a root; leave it out");
  const bool moves = any([](const Collective* c) { return c->moves_data(); });
  if (request.dtypes.given && !moves) refuse("--dtype: no chosen call moves data; leave it out");
  if (!request.sizes.empty() && !moves) refuse("--sizes: no chosen call moves data; leave it out");
  if (request.places.given && !moves) refuse("--place: no chosen call moves data; leave it out");
  if (request.counts.given && !any([](const Collective* c) { return c->divides(); }))
    refuse("--counts: none of the chosen collectives cuts S into blocks; leave it out");
}

std::vector<std::optional<PlaceMode>> block_places(const Request& request,
                                                   const Collective& collective) {
  if (!collective.moves_data()) return {std::nullopt};
  std::vector<std::optional<PlaceMode>> places;
  for (const PlaceMode place : request.places.values) {
    // broadcast has one array, so it is measured in place, whatever the default is.
    const bool exists = place == PlaceMode::in ? collective.in_place : collective.out_of_place;
    if (exists) places.push_back(place);
  }
  if (places.empty() && !collective.out_of_place && !request.places.given)
    places.push_back(PlaceMode::in);
  return places;
}

/// Notes that list the nonexistent calls that an "all" included.
std::vector<std::string> note_of(const std::map<std::string, std::int64_t>& left_out) {
  if (left_out.empty()) return {};
  std::int64_t total = 0;
  std::vector<std::string_view> reasons;
  for (const auto& [why, times] : left_out) {
    total += times;
    reasons.push_back(why);
  }
  return {fmt::format("left out {}: {}", plural(total, "combination"), fmt::join(reasons, ", "))};
}

}  // namespace

Key Block::key() const {
  Key key;
  key.coll = collective->name;
  if (collective->moves_data()) key.dtype = dtype;
  key.op = op;
  key.place = place;
  key.root = root;
  if (counts) key.counts = counts->name();
  return key;
}

Cell Block::cell(int ranks, int rank, std::int64_t size_bytes) const {
  Cell cell{size_bytes / static_cast<std::int64_t>(size_of(dtype)), ranks, rank, root.value_or(-1)};
  if (counts) {
    cell.blocks = counts->cut(cell.count, ranks);
    cell.uneven = !counts->is_even();
  }
  return cell;
}

std::size_t Block::footprint(int ranks, std::int64_t size_bytes) const {
  Cell each = cell(ranks, 0, size_bytes);
  std::size_t most = 0;
  for (; each.rank < ranks; ++each.rank)
    most = std::max(most,
                    Workspace::footprint(collective->extent(each), dtype, place == PlaceMode::in));
  return most;
}

std::int64_t Plan::rows() const noexcept {
  std::int64_t rows = 0;
  for (const Block& block : blocks) rows += std::ssize(block.bytes);
  return rows;
}

std::string Plan::fingerprint(int ranks) const {
  std::string text;
  for (const Block& block : blocks) {
    text += title(block.key());
    for (const std::int64_t size : block.bytes)
      text +=
          fmt::format(" {}: {}", size, fmt::join(block.cell(ranks, 0, size).blocks.counts(), " "));
  }
  // std::hash suffices: all ranks run the same binary.
  return fmt::format("{:x}", std::hash<std::string>()(text));
}

Plan make_plan(const Request& request, int ranks) {
  check_options_have_use(request);
  if (request.root && *request.root >= ranks)
    refuse("--root {}: there are ranks 0 to {}", *request.root, ranks - 1);
  std::vector<int> roots{request.root.value_or(0)};
  if (request.all_roots) {
    roots.clear();
    for (int r = 0; r < ranks; ++r) roots.push_back(r);
  }

  Plan plan;
  std::map<std::string, std::int64_t> left_out;  // Number of calls by reason.
  for (const Collective* collective : request.collectives.values) {
    std::vector<DType> dtypes{DType::f32};
    if (collective->moves_data()) dtypes = request.dtypes.values;
    const auto places = block_places(request, *collective);
    if (places.empty()) {
      const std::string why = fmt::format("{} has no {} form", collective->name,
                                          collective->in_place ? "out-of-place" : "in-place");
      if (!request.collectives.all) refuse("--place: {}; leave the option out", why);
      ++left_out[why];
      continue;
    }
    if (collective->paired() && ranks % 2 != 0) {
      const std::string why = fmt::format("messages between pairs of {}", plural(ranks, "rank"));
      if (!request.collectives.all)
        refuse("{}: {}; use an even number of ranks", collective->name, why);
      ++left_out[why];
      continue;
    }
    if (!request.async_for.empty() && collective->start == nullptr) {
      const std::string why = fmt::format("{} has no form that returns a Work", collective->name);
      if (!request.collectives.all)
        refuse("{}: {}; leave the option or the collective out", request.async_for, why);
      ++left_out[why];
      continue;
    }
    std::vector<std::optional<Counts>> layouts{std::nullopt};
    if (collective->divides())
      layouts.assign(request.counts.values.begin(), request.counts.values.end());
    for (const DType dtype : dtypes) {
      std::vector<std::optional<ReduceOp::Kind>> ops{std::nullopt};
      if (collective->reduces) ops.assign(request.ops.values.begin(), request.ops.values.end());
      for (const auto& op : ops) {
        if (op) {
          const std::string_view why = missing(request, *collective, dtype, *op);
          if (!why.empty()) {
            ++left_out[std::string(why)];
            continue;
          }
        }
        for (const int root : roots) {
          for (const auto& counts : layouts) {
            for (const auto& place : places) {
              Block block{collective, dtype, op, std::nullopt, place, counts, {}};
              if (collective->rooted) block.root = root;
              block.bytes = block_sizes(request, block, ranks);
              if (counts) (void)counts->cut(1, ranks);  // Refuses invalid counts before the run.
              plan.blocks.push_back(std::move(block));
            }
          }
          if (!collective->rooted) break;
        }
      }
    }
  }
  plan.notes = note_of(left_out);
  if (plan.blocks.empty())
    refuse("nothing to measure{}{}", plan.notes.empty() ? "" : ": ",
           plan.notes.empty() ? "" : plan.notes.front());
  return plan;
}

void check_memory(const Plan& plan, int ranks, int local_ranks, std::int64_t free_bytes,
                  std::int64_t copies) {
  for (const Block& block : plan.blocks) {
    for (const std::int64_t bytes : block.bytes) {
      // A size beyond all memory could overflow the footprint; in all_to_all a rank may receive S
      // from every rank.
      const bool fits = bytes <= free_bytes &&
                        bytes <= std::numeric_limits<std::int64_t>::max() / (8 * ranks) &&
                        block.footprint(ranks, bytes) <=
                            static_cast<std::size_t>(free_bytes / local_ranks / copies);
      if (!fits)
        refuse(
            "size {}: the arrays of {} for {} do not fit into {} of free memory; use smaller "
            "sizes",
            format_bytes(bytes), block.collective->name, plural(local_ranks, "rank"),
            format_bytes(free_bytes));
    }
  }
}

}  // namespace tutti::tool
