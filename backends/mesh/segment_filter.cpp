#include "mesh/segment_filter.hpp"

#include <dirent.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdlib>
#include <memory>

namespace tutti::backend::mesh {

std::vector<int> descriptors_of_process() {
  std::vector<int> all;
  // Not std::filesystem::directory_iterator, which ends the process if it has no memory
  // (libstdc++ 12).
  struct Close {
    void operator()(DIR* directory) const noexcept { ::closedir(directory); }
  };
  const std::unique_ptr<DIR, Close> directory(::opendir("/proc/self/fd"));
  if (directory == nullptr) return all;
  while (const auto* entry = ::readdir(directory.get()))
    if (entry->d_name[0] != '.') all.push_back(std::atoi(entry->d_name));
  return all;
}

sock_filter filter_step(int code, std::uint32_t k, int yes, int no) {
  return {static_cast<std::uint16_t>(code), static_cast<std::uint8_t>(yes),
          static_cast<std::uint8_t>(no), k};
}

/// The packet begins with its TCP header. The upper half of the byte at offset 12 is the header's
/// length in units of 4 bytes.
std::vector<sock_filter> pass_without_data() {
  return {
      filter_step(BPF_LD | BPF_B | BPF_ABS, 12),       filter_step(BPF_ALU | BPF_RSH | BPF_K, 2),
      filter_step(BPF_ALU | BPF_AND | BPF_K, 0x3c),    filter_step(BPF_MISC | BPF_TAX, 0),
      filter_step(BPF_LD | BPF_W | BPF_LEN, 0),        filter_step(BPF_ALU | BPF_SUB | BPF_X, 0),
      filter_step(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1), filter_step(BPF_RET | BPF_K, pass_segment)};
}

int filter_segments(int descriptor, std::span<const sock_filter> steps) noexcept {
  const sock_fprog filter{static_cast<std::uint16_t>(steps.size()),
                          const_cast<sock_filter*>(steps.data())};
  return ::setsockopt(descriptor, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof filter) == 0
             ? 0
             : errno;
}

void pass_all_segments(int descriptor) noexcept {
  const int none = 0;
  ::setsockopt(descriptor, SOL_SOCKET, SO_DETACH_FILTER, &none, sizeof none);
}

}  // namespace tutti::backend::mesh
