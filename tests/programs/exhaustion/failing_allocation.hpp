#pragma once

#include <array>
#include <cstdint>

namespace tutti::test {

/// The return addresses of a failed allocation, relative to the library, for addr2line; 0: of
/// another library.
using Frames = std::array<std::uintptr_t, 24>;

/// From now on, the n-th allocation of this process that a function of the library asks for fails,
/// once; the first is 1. Counts those of all threads by operator new. Leaves out those of the
/// libraries below it, such as Gloo, and of the test itself. `frames` gets the failed one.
void fail_allocation(std::int64_t n, Frames& frames) noexcept;
/// No allocation fails from now on. True if one has failed.
bool end_failing() noexcept;

/// Counts an allocation of another kind. True if it has to fail.
bool allocation_fails() noexcept;

}  // namespace tutti::test
