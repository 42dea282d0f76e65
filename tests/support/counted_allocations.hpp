#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "support/memories.hpp"

namespace tutti::test {

/// A program with counted_allocations.cpp among its sources counts the allocations of all its
/// threads, those of the library included, from begin_counting() to end_counting(), which returns
/// their number.
void begin_counting() noexcept;
std::uint64_t end_counting() noexcept;

/// Host memory, each allocation of which counts too.
class CountingMemory final : public PassingMemory {
 public:
  void* allocate(std::size_t bytes, Stream stream) override;
  void release(void* data, std::size_t bytes, Stream stream) noexcept override {
    live_ -= bytes;
    PassingMemory::release(data, bytes, stream);
  }

  /// The bytes that have not been released.
  std::size_t live() const { return live_; }

 private:
  std::atomic<std::size_t> live_ = 0;
};

}  // namespace tutti::test
