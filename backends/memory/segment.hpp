#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "available_memory.hpp"
#include "descriptor.hpp"
#include "values/fork_guard.hpp"

namespace tutti::backend::memory {

struct FileOptions {
  /// Refuses file systems on disks: their "shared memory" is written back to the disk.
  bool only_memory = false;
  /// Empty: only the kernel decides.
  MemoryFigures available = [] { return available_memory(); };
};

/// An anonymous file that processes can map. All of its memory is allocated, so no access raises
/// SIGBUS.
/// @throws Error resource_exhausted, before memory is short; its text names the sizes.
Descriptor make_file(std::size_t bytes, const FileOptions& options = {});
/// The same as an unnamed file in `directory`, for systems that forbid memfd.
Descriptor make_file_in(const std::string& directory, std::size_t bytes,
                        const FileOptions& options = {});

/// The reason why make_file() in memory alone cannot make a file of this size; empty if the system
/// permits memfd, or a folder has room. Allocates nothing.
std::string lack_of_files(std::size_t bytes);

/// Allocates a part of such a file again. @throws Error as make_file().
void allocate_part(const Descriptor& file, std::size_t begin, std::size_t bytes,
                   const MemoryFigures& available);

/// The mapping of such a file. Threads of one process share one mapping of a file.
class Segment {
 public:
  enum class Use : std::uint8_t {
    group,  ///< The memory of a group: all of it is populated.
    /// Memory of arrays: a part may not be allocated. A forked child has no such memory, and gets
    /// SIGSEGV if it accesses it: otherwise both processes would write to the same arrays.
    arrays
  };

  /// Maps the whole file. `bytes`: its expected size. @throws Error backend if the file has another
  /// size or can shrink; resource_exhausted.
  static std::shared_ptr<Segment> map(const Descriptor& file, std::size_t bytes,
                                      Use use = Use::group);
  /// Unmaps, but not in a forked child, which has other memory there.
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::byte* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }
  /// Enters allocated pages into the page table, because a later page fault costs more.
  void populate(std::size_t begin, std::size_t bytes) const noexcept;
  /// Gives the memory of whole pages back to the system. False if the system cannot. A later access
  /// to them would allocate, so there must be none before allocate_part().
  bool return_pages(std::size_t begin, std::size_t bytes) noexcept;

 private:
  Segment(std::size_t bytes, Use use) noexcept : bytes_(bytes), use_(use) {}

  std::byte* data_ = nullptr;
  std::size_t bytes_;
  Use use_;
  internal::ForkGuard fork_guard_;
};

}  // namespace tutti::backend::memory
