#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "descriptor.hpp"

namespace tutti::backend::shm {

/// An anonymous file that processes can map. All of its memory is allocated, so no access raises
/// SIGBUS.
/// @throws Error resource_exhausted; its text names the size.
Descriptor make_file(std::size_t bytes);
/// The same as an unnamed file in `directory`, for systems that forbid memfd.
Descriptor make_file_in(const std::string& directory, std::size_t bytes);

/// The mapping of such a file. Threads of one process share one mapping of a file.
class Segment {
 public:
  /// Maps the whole file. `bytes`: its expected size. @throws Error backend if the file has another
  /// size or can shrink; resource_exhausted.
  static std::shared_ptr<Segment> map(const Descriptor& file, std::size_t bytes);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  std::byte* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  Segment(std::byte* data, std::size_t bytes) noexcept : data_(data), bytes_(bytes) {}

  std::byte* data_;
  std::size_t bytes_;
};

}  // namespace tutti::backend::shm
