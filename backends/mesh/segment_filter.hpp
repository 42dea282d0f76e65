#pragma once

#include <linux/filter.h>

#include <cstdint>
#include <span>
#include <vector>

// The descriptors of libraries that do not show them, and filters of the kernel on their sockets.

namespace tutti::backend::mesh {

/// The open descriptors of this process; empty if /proc does not show them.
std::vector<int> descriptors_of_process();

/// A step of a filter.
sock_filter filter_step(int code, std::uint32_t k, int yes = 0, int no = 0);
inline constexpr std::uint32_t drop_segment = 0;
inline constexpr std::uint32_t pass_segment = 0xffffffff;

/// The first steps of a filter of TCP segments: segments without data pass. For the steps that
/// follow, the data begins at offset 0 of BPF_IND.
std::vector<sock_filter> pass_without_data();

/// Filters the segments that arrive from now on at a socket, and at the sockets that it accepts.
/// Returns the kernel's error; 0: none.
int filter_segments(int descriptor, std::span<const sock_filter> steps) noexcept;
/// Ends the filter of a socket.
void pass_all_segments(int descriptor) noexcept;

}  // namespace tutti::backend::mesh
