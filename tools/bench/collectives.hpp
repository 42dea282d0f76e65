#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include <tutti/process_group.hpp>

#include "bench/cell.hpp"
#include "bench/pattern.hpp"

namespace tutti::tool {

/// The size of an array of a cell.
enum class Part : std::uint8_t {
  nothing,
  whole,          ///< S.
  whole_of_root,  ///< S on the root, 0 on other ranks.
  block,          ///< The rank's own block.
  own_of_each,    ///< W times this rank's block.
  padded,         ///< W times the longest block.
  window,         ///< S of each message in flight: messages.hpp.
  window_or_one   ///< The same; one element on the rank that sends the window.
};

/// Bus bandwidth divided by algorithm bandwidth; docs/benchmarking.md derives it.
struct Factor {
  double (*of)(const Cell& cell);  ///< 0 if no byte crosses a link.
  std::string_view text;
  std::string_view uneven_text{};  ///< With --counts; empty if S is not divided.
};
/// Every rank sends or receives S once.
inline constexpr Factor crosses_once{[](const Cell&) { return 1.0; }, "1"};

/// The description of one operation for the whole tool.
struct Collective {
  std::string_view name;
  Operation operation;
  bool reduces = false;
  bool rooted = false;
  bool out_of_place = true;
  bool in_place = false;
  /// The messages of a pair of ranks in a call, one after the other; a row has the time of one.
  /// Null for calls of all ranks.
  std::int64_t (*messages)(const Cell& cell) = nullptr;
  int ways = 1;              ///< 2: as many messages go the other way at the same time.
  bool makes_group = false;  ///< Not a collective of data; "all" does not include it.
  std::string_view size_is = "the array of each rank";
  Factor factor = crosses_once;
  Part in = Part::whole;
  Part out = Part::whole;
  /// The parts of the result. Null if `source` describes the whole output.
  std::vector<Piece> (*pieces)(const Cell& cell) = nullptr;
  /// The source of the whole output, if `pieces` is null. For a block, result() sets `first` to the
  /// rank's offset.
  Pattern::Source (*source)(const Cell& cell) = nullptr;
  void (*call)(ProcessGroup& group, const Arrays& arrays, const How& how);
  /// The asynchronous form, which a Coalesce collects. Null if there is none.
  Work (*start)(ProcessGroup& group, const Arrays& arrays, const How& how) = nullptr;

  Extent extent(const Cell& cell) const;
  /// This rank's result; empty without output.
  std::vector<Piece> result(const Cell& cell) const;
  /// Ranks i and i + W/2 exchange messages; W is even.
  bool paired() const noexcept { return messages != nullptr; }
  bool moves_data() const noexcept { return operation != Operation::barrier; }
  /// S is divided into one block per rank.
  bool divides() const noexcept { return !factor.uneven_text.empty(); }
};

std::span<const Collective> collectives() noexcept;
/// Null for an unknown name.
const Collective* find_collective(std::string_view name) noexcept;

}  // namespace tutti::tool
