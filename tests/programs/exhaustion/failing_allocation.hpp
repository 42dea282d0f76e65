#pragma once

#include <array>
#include <cstdint>

namespace tutti::test {

/// From fail_allocation() on, the n-th allocation of this process that a function of the library
/// asks for fails, once; the first is 1. Counts those of all threads by operator new. Leaves out
/// those of the libraries below it, such as Gloo, and of the test itself.
void fail_allocation(std::int64_t n) noexcept;
/// No allocation fails from now on. True if one has failed.
bool end_failing() noexcept;

/// The return addresses of the failed allocation, relative to the library, for addr2line; 0: the
/// frame of another library.
using Frames = std::array<std::uintptr_t, 24>;
const Frames& failed_frames() noexcept;

/// Counts an allocation of another kind. True if it has to fail.
bool allocation_fails() noexcept;

}  // namespace tutti::test
