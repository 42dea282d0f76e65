#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include <tutti/memory.hpp>

namespace tutti::test {

/// Memory that passes every call on to another one: the host's, unless it is named.
class PassingMemory : public Memory {
 public:
  explicit PassingMemory(Memory& inner = host_memory()) noexcept : inner_(inner) {}
  Device device() const noexcept override { return inner_.device(); }
  void* allocate(std::size_t bytes, Stream stream) override {
    return inner_.allocate(bytes, stream);
  }
  void release(void* data, std::size_t bytes, Stream stream) noexcept override {
    inner_.release(data, bytes, stream);
  }
  void copy(void* to, const void* from, std::size_t bytes, Stream stream) override {
    inner_.copy(to, from, bytes, stream);
  }

 private:
  Memory& inner_;
};

/// Memory that records its blocks. Any thread may use it.
class RecordingMemory : public PassingMemory {
 public:
  struct Block {
    const void* data;
    std::size_t bytes;
    Stream stream{};
    bool operator==(const Block&) const = default;
  };

  using PassingMemory::PassingMemory;
  void* allocate(std::size_t bytes, Stream stream) override {
    void* data = PassingMemory::allocate(bytes, stream);
    const std::lock_guard lock(mutex_);
    ++allocations_;
    live_.push_back({data, bytes, stream});
    return data;
  }
  /// The block stays in live() if it was allocated with other bytes or on another stream.
  void release(void* data, std::size_t bytes, Stream stream) noexcept override {
    {
      const std::lock_guard lock(mutex_);
      std::erase(live_, Block{data, bytes, stream});
    }
    PassingMemory::release(data, bytes, stream);
  }

  /// The blocks that have not been released, in the order of allocation.
  std::vector<Block> live() const {
    const std::lock_guard lock(mutex_);
    return live_;
  }
  int allocations() const {
    const std::lock_guard lock(mutex_);
    return allocations_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Block> live_;
  int allocations_ = 0;
};

/// Memory that calls a function before each allocation; the function may throw.
class FailingMemory final : public PassingMemory {
 public:
  explicit FailingMemory(std::function<void(std::size_t bytes)> before,
                         Memory& inner = host_memory())
      : PassingMemory(inner), before_(std::move(before)) {}
  void* allocate(std::size_t bytes, Stream stream) override {
    before_(bytes);
    return PassingMemory::allocate(bytes, stream);
  }

 private:
  std::function<void(std::size_t bytes)> before_;
};

}  // namespace tutti::test
