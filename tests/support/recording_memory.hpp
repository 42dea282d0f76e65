#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <tutti/memory.hpp>

namespace tutti::test {

/// Memory that records its allocations; the host's, unless another one is named. For one thread at
/// a time.
class RecordingMemory final : public Memory {
 public:
  using Allocation = std::pair<void*, std::size_t>;

  explicit RecordingMemory(Memory& inner = host_memory()) noexcept : inner_(inner) {}

  Device device() const noexcept override { return inner_.device(); }
  void* allocate(std::size_t bytes, Stream stream) override {
    ++allocations_;
    return live_.emplace_back(inner_.allocate(bytes, stream), bytes).first;
  }
  void release(void* data, std::size_t bytes, Stream stream) noexcept override {
    std::erase(live_, Allocation(data, bytes));
    inner_.release(data, bytes, stream);
  }
  void copy(void* to, const void* from, std::size_t bytes, Stream stream) override {
    inner_.copy(to, from, bytes, stream);
  }

  /// The allocations that have not been released, in the order of allocation.
  const std::vector<Allocation>& live() const { return live_; }
  int allocations() const { return allocations_; }

 private:
  Memory& inner_;
  std::vector<Allocation> live_;
  int allocations_ = 0;
};

}  // namespace tutti::test
