#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

// The memory of the devices of the double: addresses that the host cannot read, with a history of
// accesses.

namespace tutti::test::nccl_double {

/// A vector clock: the known progress of each lane (stream). A value.
class LaneClock {
 public:
  std::uint64_t at(int lane) const noexcept {
    const auto i = static_cast<std::size_t>(lane);
    return i < epochs_.size() ? epochs_[i] : 0;
  }
  void set(int lane, std::uint64_t epoch);
  void merge(const LaneClock& other);

 private:
  std::vector<std::uint64_t> epochs_;
};

/// A read or a write of `bytes` bytes from `data` on.
struct Touch {
  const void* data = nullptr;
  std::size_t bytes = 0;
  bool write = false;
};

/// The origin and the time of an access.
struct Access {
  std::size_t begin = 0;
  std::size_t end = 0;
  bool write = false;
  int lane = 0;
  std::uint64_t epoch = 0;
  std::string what;
};

struct Block {
  std::uintptr_t base = 0;
  std::size_t bytes = 0;
  int device = 0;
  bool freed = false;
  std::vector<Access> accesses;
  bool of_nccl = false;  ///< From ncclMemAlloc.
  bool of_pool = false;  ///< From cudaMallocFromPoolAsync.
};

class DeviceMemory {
 public:
  static constexpr int fresh = 0xCD;  ///< The bytes of new memory.
  static constexpr int freed = 0xDD;  ///< The bytes of freed memory.

  DeviceMemory();
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  /// Null when there is no room.
  void* allocate(int device, std::size_t bytes);
  /// The addresses of a freed block may be given out again, not at once.
  void retire(const Block& block);

  /// The block in which `data` lies, also a freed one; null for host memory.
  Block* find(const void* data) noexcept;
  bool is_device_address(const void* data) const noexcept;
  /// The host address of the bytes at a device address.
  std::byte* bytes(const void* data) const noexcept;

  std::map<std::uintptr_t, Block>& blocks() noexcept { return blocks_; }
  const std::map<std::uintptr_t, Block>& blocks() const noexcept { return blocks_; }

 private:
  std::byte* addresses_ = nullptr;  // Not accessible.
  std::byte* storage_ = nullptr;
  std::size_t used_ = 0;
  std::map<std::uintptr_t, Block> blocks_;
  std::map<std::size_t, std::deque<std::uintptr_t>> retired_;  // By room; the oldest first.
  std::size_t retired_bytes_ = 0;
};

/// Host memory that was got from CUDA.
class PinnedMemory {
 public:
  void* allocate(std::size_t bytes);
  /// False for what is no block.
  bool release(void* data);
  /// True if `bytes` from `data` on are in one block.
  bool contains(const void* data, std::size_t bytes) const;
  std::size_t bytes() const noexcept { return bytes_; }
  std::size_t blocks() const noexcept { return blocks_.size(); }
  /// Copies that are queued and use a block, counted by begin() and end().
  void begin(const void* data);
  void end(const void* data);
  bool busy(const void* data) const;
  /// Forgets all blocks; queued copies may still use them.
  void forget();

 private:
  struct Block {
    std::unique_ptr<std::byte[]> storage;  // Larger than the block by one alignment.
    std::size_t bytes = 0;
    int copies = 0;
  };
  std::map<std::uintptr_t, Block>::iterator find(const void* data);
  std::map<std::uintptr_t, Block> blocks_;
  std::vector<Block> forgotten_;
  std::size_t bytes_ = 0;
};

}  // namespace tutti::test::nccl_double
