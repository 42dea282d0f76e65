#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <optional>

#include <tutti/error.hpp>

#include "layout.hpp"

namespace tutti::backend::memory {

/// The error if the cause of a broken group is not known.
Error another_rank_broke_it() noexcept;

/// The shared memory of a group, by its parts. Copies refer to the same memory.
class GroupMemory {
 public:
  /// Without memory, until `data` is set.
  explicit GroupMemory(int size) noexcept : size_(size), layout_(size) {}

  /// Makes memory of this process, without rings and with its words.
  void allocate();
  /// Makes the words of fresh memory.
  void construct() const noexcept;

  const Layout& layout() const noexcept { return layout_; }
  std::byte* at(std::size_t offset) const noexcept { return data.get() + offset; }
  SharedGroup& group() const noexcept { return part<SharedGroup>(0); }
  SharedRank& of(int rank) const noexcept {
    return part<SharedRank>(layout_.rank(static_cast<std::size_t>(rank)));
  }
  SharedRing& ring(int from, int to) const noexcept {
    return part<SharedRing>(
        layout_.ring(static_cast<std::size_t>(from), static_cast<std::size_t>(to)));
  }

  /// Breaks the group. `why` applies to all ranks if no rank has broken it before; then this is
  /// true. Once per rank. Its peers are not woken.
  bool break_group(int rank, const Error& why) const noexcept;
  /// The first cause; empty while the group is not broken.
  std::optional<Error> cause() const noexcept;

  std::shared_ptr<std::byte> data{};  ///< Of Layout::bytes() bytes, aligned to a cache line.

 private:
  template <typename T>
  T& part(std::size_t offset) const noexcept {
    return *std::launder(reinterpret_cast<T*>(at(offset)));
  }

  int size_;
  Layout layout_;
};

}  // namespace tutti::backend::memory
