#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <tutti/memory.hpp>

#include "available_memory.hpp"
#include "descriptor.hpp"
#include "segment.hpp"
#include "values/fork_guard.hpp"

namespace tutti::backend::memory {

/// The location of an array in memory that processes can share, as a process describes it to
/// others.
struct Location {
  static constexpr std::uint32_t nowhere = 0;  ///< Peers cannot access it.
  /// Anywhere in the rank's process: `offset` is the address.
  static constexpr std::uint32_t process = ~std::uint32_t{0};

  std::uint32_t segment = nowhere;
  std::int32_t file = -1;  ///< The segment's descriptor in the process that made it.
  std::uint64_t offset = 0;
};

/// The beginning of a segment of mapped memory.
struct SegmentLabel {
  static constexpr std::uint64_t word = 0x7475'7474'6900'0002;
  static constexpr std::uint64_t retired = 0;  ///< As the segment: no array will be in it again.

  std::uint64_t magic = word;
  std::uint64_t process = 0;  ///< The process that made the segment.
  std::uint64_t segment = 0;
};

/// Memory that other processes can map: the memory of the groups of this process. Blocks are cut
/// from segments. Allocating never communicates. A forked child has no access to the blocks.
///
/// Released blocks are used again, and free memory beyond a limit goes back to the system: twice
/// the most memory that was in use during the last 1000 to 2000 releases, and 64 MiB. It is
/// compared when memory is allocated that is not there, and every 1000 releases. So a loop that
/// allocates the same sizes makes no system calls, unless it releases more than 1000 arrays a
/// round.
class MappedMemory final : public Memory, public std::enable_shared_from_this<MappedMemory> {
 public:
  /// The one object of the process, or a new one.
  static std::shared_ptr<MappedMemory> of_process();

  explicit MappedMemory(MemoryFigures available = [] { return available_memory(); })
      : available_(std::move(available)) {}

  ~MappedMemory() override;
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

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
    std::size_t bytes() const noexcept { return end - begin; }
  };
  struct Part {
    std::uint32_t number = Location::nowhere;
    Descriptor file{};
    std::shared_ptr<Segment> memory{};
    std::vector<Range> free{};   // In order, and apart from each other. Has room for give().
    std::vector<Range> holes{};  // Of them, whole pages that the system has. In order.
    std::size_t blocks = 0;
    std::size_t allocated = 0;  // Bytes, without holes.
    bool quarantined = false;   // Nothing is free again.
  };
  using Parts = std::list<Part>;
  struct Block {
    Part* part = nullptr;  // Null: none.
    Range range{};
    explicit operator bool() const noexcept { return part != nullptr; }
    void* data() const noexcept { return part->memory->data() + range.begin; }
  };

  // With the lock. A block that is taken keeps its part from being retired.
  Block take_allocated(std::size_t bytes);
  Block take_with_holes(std::size_t bytes, std::vector<Range>& holes);
  void take(const Block& block);
  void use(const Block& block);
  void give(Part& part, Range range) noexcept;
  static void add_hole(Part& part, Range range);
  void count(Part& part, std::size_t bytes) noexcept;
  template <typename Visit>
  void for_each_free(const Visit& visit);
  Block largest_free();
  std::size_t kept() const noexcept;
  const Part* part_of(const void* data) const noexcept;
  Part* part_of(const void* data) noexcept;

  // Without the lock, as they make system calls that take long.
  Block find_block(std::size_t bytes);
  Parts make_part(std::size_t bytes) const;
  void fill(const Block& block, const std::vector<Range>& holes);
  bool return_free(std::size_t keep) noexcept;
  static void retire(const Part& part) noexcept;

  const MemoryFigures available_;
  internal::ForkGuard fork_guard_;
  std::mutex returning_;  // Before mutex_.
  mutable std::mutex mutex_;
  Parts parts_;
  std::atomic<bool> has_parts_ = false;  // Or has had.
  std::size_t in_use_ = 0;               // Bytes of blocks.
  std::size_t allocated_ = 0;            // Bytes of parts that are not quarantined.
  // The most bytes in use in this period of releases, and in the last one.
  std::size_t peak_ = 0;
  std::size_t last_peak_ = 0;
  std::uint64_t releases_ = 0;
};

}  // namespace tutti::backend::memory
