#include "reads.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "values/environment_switch.hpp"

namespace tutti::backend::memory {

bool read_process(int process, std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  while (bytes != 0) {
    const iovec local{to, bytes};
    const iovec remote{const_cast<std::byte*>(from), bytes};
    const auto got = ::process_vm_readv(process, &local, 1, &remote, 1, 0);
    if (got <= 0) return false;
    to += got;
    from += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

ReadThreshold::ReadThreshold() {
  const auto number = internal::environment_number("TUTTI_SHM_READS", -1, 1);
  if (number >= 0) wanted_ = number == 1;
}

std::string describe_reads() {
  using Clock = std::chrono::steady_clock;
  constexpr auto bytes = tested_reads.back();
  std::vector<std::byte> from(bytes);
  std::vector<std::byte> to(bytes);
  double copies = std::numeric_limits<double>::max();
  double reads = copies;
  bool permitted = true;
  const auto us = [](auto time) { return std::chrono::duration<double, std::micro>(time).count(); };
  for (int round = 0; round < 6; ++round) {
    const auto begin = Clock::now();
    std::memcpy(to.data(), from.data(), bytes);
    std::memcpy(from.data(), to.data(), bytes);
    const auto copied = Clock::now();
    permitted = read_process(::getpid(), to.data(), from.data(), bytes);
    copies = std::min(copies, us(copied - begin));
    reads = std::min(reads, us(Clock::now() - copied));
  }
  return fmt::format(
      "private arrays that a rank only reads: by process_vm_readv(), if the first call with blocks "
      "of {} bytes finds that faster (TUTTI_SHM_READS); within a process here {} bytes take {:.1f} "
      "us to copy twice, {}\n",
      tested_reads[0], bytes, copies,
      permitted ? fmt::format("{:.1f} us to read", reads) : "and reads are forbidden");
}

}  // namespace tutti::backend::memory
