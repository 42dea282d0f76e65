#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include <tutti/memory.hpp>

namespace tutti::test {

/// Host memory that knows what it gave out. For one thread at a time.
class RecordingMemory final : public Memory {
 public:
  using Place = std::pair<void*, std::size_t>;

  Device device() const noexcept override { return {}; }
  void* allocate(std::size_t bytes, Stream stream) override {
    ++allocations_;
    return live_.emplace_back(host_memory().allocate(bytes, stream), bytes).first;
  }
  void release(void* data, std::size_t bytes, Stream stream) noexcept override {
    std::erase(live_, Place(data, bytes));
    host_memory().release(data, bytes, stream);
  }
  void copy(void* to, const void* from, std::size_t bytes, Stream stream) override {
    host_memory().copy(to, from, bytes, stream);
  }

  /// What has not come back yet, in the order in which it was asked for.
  const std::vector<Place>& live() const { return live_; }
  int allocations() const { return allocations_; }

 private:
  std::vector<Place> live_;
  int allocations_ = 0;
};

}  // namespace tutti::test
