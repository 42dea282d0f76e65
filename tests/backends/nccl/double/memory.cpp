#include "backends/nccl/double/memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace tutti::test::nccl_double {

namespace {

constexpr std::size_t arena_bytes = std::size_t{4} << 30;
constexpr std::size_t page = 4096;
/// The freed bytes that are held back before their addresses are reused.
constexpr std::size_t quarantine_bytes = std::size_t{32} << 20;

std::byte* reserve(int protection) {
  void* data =
      mmap(nullptr, arena_bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) throw std::runtime_error("no address space for the double's devices");
  return static_cast<std::byte*>(data);
}

/// A page without a block is between any two blocks.
std::size_t room_for(std::size_t bytes) {
  return (bytes + page - 1) / page * page + page;
}

}  // namespace

void LaneClock::set(int lane, std::uint64_t epoch) {
  const auto i = static_cast<std::size_t>(lane);
  if (i >= epochs_.size()) epochs_.resize(i + 1);
  epochs_[i] = epoch;
}

void LaneClock::merge(const LaneClock& other) {
  if (other.epochs_.size() > epochs_.size()) epochs_.resize(other.epochs_.size());
  for (std::size_t i = 0; i < other.epochs_.size(); ++i)
    epochs_[i] = std::max(epochs_[i], other.epochs_[i]);
}

DeviceMemory::DeviceMemory()
    : addresses_(reserve(PROT_NONE)), storage_(reserve(PROT_READ | PROT_WRITE)) {}

DeviceMemory::~DeviceMemory() {
  munmap(addresses_, arena_bytes);
  munmap(storage_, arena_bytes);
}

void* DeviceMemory::allocate(int device, std::size_t bytes) {
  const std::size_t room = room_for(bytes);
  std::uintptr_t base = 0;
  if (auto& waiting = retired_[room]; !waiting.empty() && retired_bytes_ > quarantine_bytes) {
    base = waiting.front();
    waiting.pop_front();
    retired_bytes_ -= room;
    blocks_.erase(base);
  } else {
    if (room > arena_bytes - used_) return nullptr;
    base = reinterpret_cast<std::uintptr_t>(addresses_ + used_);
    used_ += room;
  }
  blocks_[base] = {.base = base, .bytes = bytes, .device = device, .freed = false, .accesses = {}};
  void* data = reinterpret_cast<void*>(base);  // NOLINT(performance-no-int-to-ptr)
  std::memset(this->bytes(data), fresh, bytes);
  return data;
}

void DeviceMemory::retire(const Block& block) {
  retired_[room_for(block.bytes)].push_back(block.base);
  retired_bytes_ += room_for(block.bytes);
}

Block* DeviceMemory::find(const void* data) noexcept {
  if (!is_device_address(data)) return nullptr;
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  auto next = blocks_.upper_bound(address);
  if (next == blocks_.begin()) return nullptr;
  Block& block = std::prev(next)->second;
  return address < block.base + std::max<std::size_t>(block.bytes, 1) ? &block : nullptr;
}

bool DeviceMemory::is_device_address(const void* data) const noexcept {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const auto first = reinterpret_cast<std::uintptr_t>(addresses_);
  return address >= first && address - first < arena_bytes;
}

std::byte* DeviceMemory::bytes(const void* data) const noexcept {
  return storage_ + (static_cast<const std::byte*>(data) - addresses_);
}

void* PinnedMemory::allocate(std::size_t bytes) {
  auto storage = std::make_unique<std::byte[]>(bytes + page);
  const auto base = (reinterpret_cast<std::uintptr_t>(storage.get()) + page - 1) / page * page;
  void* data = reinterpret_cast<void*>(base);  // NOLINT(performance-no-int-to-ptr)
  std::memset(data, DeviceMemory::fresh, bytes);
  blocks_[base] = {std::move(storage), bytes, 0};
  bytes_ += bytes;
  return data;
}

std::map<std::uintptr_t, PinnedMemory::Block>::iterator PinnedMemory::find(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  auto next = blocks_.upper_bound(address);
  if (next == blocks_.begin()) return blocks_.end();
  const auto found = std::prev(next);
  return address - found->first < found->second.bytes ? found : blocks_.end();
}

bool PinnedMemory::release(void* data) {
  const auto found = blocks_.find(reinterpret_cast<std::uintptr_t>(data));
  if (found == blocks_.end()) return false;
  bytes_ -= found->second.bytes;
  blocks_.erase(found);
  return true;
}

bool PinnedMemory::contains(const void* data, std::size_t bytes) const {
  const auto found = const_cast<PinnedMemory*>(this)->find(data);
  return found != blocks_.end() &&
         reinterpret_cast<std::uintptr_t>(data) - found->first + bytes <= found->second.bytes;
}

void PinnedMemory::begin(const void* data) {
  ++find(data)->second.copies;
}

void PinnedMemory::end(const void* data) {
  if (const auto found = find(data); found != blocks_.end()) --found->second.copies;
}

bool PinnedMemory::busy(const void* data) const {
  const auto found = const_cast<PinnedMemory*>(this)->find(data);
  return found != blocks_.end() && found->second.copies != 0;
}

void PinnedMemory::forget() {
  for (auto& [base, block] : blocks_) forgotten_.push_back(std::move(block));
  blocks_.clear();
  bytes_ = 0;
}

}  // namespace tutti::test::nccl_double
