#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <tutti/process_group.hpp>
#include <tutti/row_layout.hpp>

#include "bench/pattern.hpp"

namespace tutti::tool {

/// One rank's part of a call. `count` is the size S of the sweep in elements.
struct Cell {
  std::int64_t count = 0;
  int ranks = 1;
  int rank = 0;
  int root = 0;
  RowLayout blocks{};   ///< The blocks of S; of no ranks if S is not divided.
  bool uneven = false;  ///< The call gets the ranks' row counts.

  std::int64_t block() const noexcept { return blocks[rank]; }
  std::int64_t at() const noexcept { return blocks.offset(rank); }
  Rows rows() const& noexcept { return uneven ? Rows(blocks) : Rows(); }
  Rows rows() && = delete;
  bool is_root() const noexcept { return rank == root; }
};

/// The arrays of a cell, in elements; 0 for arrays that this rank does not have. In-place arrays
/// share one buffer, at these offsets.
struct Extent {
  std::int64_t in = 0;
  std::int64_t out = 0;
  std::int64_t in_at = 0;
  std::int64_t out_at = 0;
};

/// A part of the result: out[at, at + count) comes from `source`.
struct Piece {
  std::int64_t at = 0;
  std::int64_t count = 0;
  Pattern::Source source{};
};

struct Arrays {
  ConstTensorView in{};
  TensorView out{};
};

/// The arguments of a call besides its arrays.
struct How {
  const Cell& cell;
  ReduceOp op{};
  CallOptions options{};
  // For calls that make a group.
  const GroupOptions* group = nullptr;          ///< The options of the measured group.
  std::optional<ProcessGroup>* made = nullptr;  ///< Receives the group.
};

/// The size of an array of a cell.
enum class Part : std::uint8_t {
  nothing,
  whole,          ///< S.
  whole_of_root,  ///< S on the root, 0 on other ranks.
  block,          ///< The rank's own block.
  own_of_each,    ///< W times this rank's block.
  padded          ///< W times the longest block.
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
  bool moves_data() const noexcept { return operation != Operation::barrier; }
  /// S is divided into one block per rank.
  bool divides() const noexcept { return !factor.uneven_text.empty(); }
};

std::span<const Collective> collectives() noexcept;
/// Null for an unknown name.
const Collective* find_collective(std::string_view name) noexcept;

}  // namespace tutti::tool
