#pragma once

#include <cstdint>
#include <optional>

#include <tutti/process_group.hpp>
#include <tutti/row_layout.hpp>

#include "bench/pattern.hpp"

// One call on one rank: its share of the size, its arrays, its other arguments.

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

}  // namespace tutti::tool
