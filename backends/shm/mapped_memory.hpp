#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <tutti/memory.hpp>

#include "descriptor.hpp"
#include "segment.hpp"
#include "values/fork_guard.hpp"

namespace tutti::backend::shm {

/// The location of an array in memory that processes can share, as a process describes it to
/// others.
struct Location {
  static constexpr std::uint32_t nowhere = 0;  ///< In private memory.
  /// In the process that all ranks are threads of: `offset` is the address.
  static constexpr std::uint32_t this_process = ~std::uint32_t{0};

  std::uint32_t segment = nowhere;
  std::int32_t file = -1;  ///< The segment's descriptor in the process that made it.
  std::uint64_t offset = 0;
};

/// The beginning of a segment of mapped memory.
struct SegmentLabel {
  static constexpr std::uint64_t word = 0x7475'7474'6900'0001;
  std::uint64_t magic = word;
  std::uint64_t segment = 0;
};

/// Memory that other processes can map: the memory of the groups of this process. Blocks are cut
/// from segments, which live until the last group and the last Tensor are gone. Allocating never
/// communicates. In a forked child the blocks are the parent's own.
class MappedMemory final : public Memory, public std::enable_shared_from_this<MappedMemory> {
 public:
  /// The one object of the process, or a new one.
  static std::shared_ptr<MappedMemory> of_process();

  Device device() const noexcept override { return {}; }
  /// @throws Error resource_exhausted with the size; forked in a child.
  void* allocate(std::size_t bytes, Stream stream) override;
  void release(void* data, std::size_t bytes, Stream stream) noexcept override;
  void copy(void* to, const void* from, std::size_t bytes, Stream stream) override;
  std::shared_ptr<const void> lifetime() const noexcept override { return shared_from_this(); }

  /// Not in this memory: Location::nowhere.
  Location find(const void* data, std::size_t bytes) const noexcept;
  /// Keeps the segment of an array from every later allocation, because a peer may still write to
  /// the array. No effect on other memory.
  void quarantine(const void* data) noexcept;

 private:
  struct Range {
    std::size_t begin;
    std::size_t end;
  };
  struct Part {
    std::uint32_t number = Location::nowhere;
    Descriptor file{};
    std::shared_ptr<Segment> memory{};
    std::vector<Range> free{};  // In order, and apart from each other. Has room for release().
    std::size_t blocks = 0;
    bool quarantined = false;  // Nothing is free again.
  };

  Part& grow(std::size_t bytes);
  const Part* part_of(const void* data) const noexcept;
  Part* part_of(const void* data) noexcept;

  internal::ForkGuard fork_guard_;
  mutable std::mutex mutex_;
  std::vector<Part> parts_;
  std::size_t bytes_ = 0;
};

}  // namespace tutti::backend::shm
