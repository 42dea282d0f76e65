#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <tutti/memory.hpp>

#include "bench/collectives.hpp"
#include "bench/pattern.hpp"
#include "bench/plan.hpp"
#include "bench/record.hpp"
#include "bench/workspace.hpp"

namespace tutti::tool {

/// The wrong elements that one rank has found in a row.
struct Wrong {
  std::int64_t count = 0;
  std::optional<FirstWrong> first{};

  void add(const Mismatches& found, int rank, PlaceMode array);
};

/// The data of the calls of one row on one rank.
class RowData {
 public:
  /// @param cell  outlives it.
  /// @param often  the same data is prepared and inspected many times: keeps a copy of the input,
  /// and of the first result without a wrong element. Later results are compared with that copy
  /// at the speed of memory instead of with the pattern. Needs the memory of one more set of
  /// buffers.
  RowData(Memory& memory, const Block& block, const Cell& cell, std::uint64_t seed, bool often);

  /// Writes the input, and poison to the output.
  void prepare(const Buffers& set);
  /// Compares every byte of the result, of the input and of the guards.
  void inspect(const Buffers& set);

  const Wrong& wrong() const noexcept { return wrong_; }

 private:
  std::int64_t elements(std::size_t bytes) const noexcept {
    return static_cast<std::int64_t>(bytes / width_);
  }
  template <typename Compare>
  void examine(const void* array, std::int64_t count, PlaceMode name, const Compare& compare);
  bool same(const void* array, const std::vector<std::byte>& copy) const;
  void inspect_result(const Buffers& set);

  Memory& memory_;
  const Cell& cell_;
  Pattern pattern_;
  std::vector<Piece> pieces_;
  std::size_t width_;
  bool often_;
  std::vector<std::byte> input_{};
  std::vector<std::byte> result_{};
  Wrong wrong_{};
};

}  // namespace tutti::tool
