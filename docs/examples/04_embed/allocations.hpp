#pragma once

#include <cstdint>

/// Counts allocations of all threads and libraries of this program from malloc, operator new or
/// mmap between start() and stop(). allocations.cpp defines these functions in the program, where
/// the dynamic linker finds them before those of the C library.
namespace allocations {

void start() noexcept;
std::int64_t stop() noexcept;

}  // namespace allocations
