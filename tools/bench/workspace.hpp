#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <tutti/memory.hpp>
#include <tutti/tensor.hpp>

#include "bench/collectives.hpp"
#include "bench/pattern.hpp"

namespace tutti::tool {

/// An array between guard bytes, which detect writes outside of it. Borrows its memory.
class Guarded {
 public:
  static constexpr std::size_t guard_bytes = 256;  // Bytes on each side; keeps 64-byte alignment.

  Guarded() = default;
  /// `slot` has bytes + 2 * guard_bytes bytes of `memory`.
  Guarded(std::byte* slot, std::size_t bytes, Memory& memory) noexcept;

  std::byte* data() const noexcept { return slot_ + guard_bytes; }
  std::size_t bytes() const noexcept { return bytes_; }
  void paint_guards() const;
  /// Fills the array with a value that no correct result holds for long: NaN in every float, -1 or
  /// the largest integer.
  void poison() const;
  /// Counts the changed guard bytes. Mismatches::index is in elements of `width` bytes.
  Mismatches damage(std::size_t width) const;

 private:
  std::byte* slot_ = nullptr;
  std::size_t bytes_ = 0;
  Memory* memory_ = nullptr;
};

/// The arrays of one call. In place `in` and `out` share one guarded buffer.
struct Buffers {
  Arrays arrays{};
  bool shared = false;
  Guarded in{};
  Guarded out{};
};

/// The memory of one rank, reused for all cases, so that page faults are not measured.
class Workspace {
 public:
  explicit Workspace(Memory& memory) noexcept : memory_(&memory) {}

  /// Bytes of one call's buffers, guards included.
  static std::size_t footprint(const Extent& extent, DType dtype, bool in_place) noexcept;

  /// `copies` sets of buffers, on separate pages if there are several. Valid until the next
  /// lay_out().
  std::vector<Buffers> lay_out(const Extent& extent, DType dtype, bool in_place,
                               std::size_t copies);

 private:
  Memory* memory_;
  Tensor slab_{};
};

}  // namespace tutti::tool
