#pragma once

#include <string>

#include <tutti/error.hpp>

#include "memory/descriptor.hpp"

namespace tutti::backend::shm {

using namespace memory;

/// The code of an error of the kernel: resource_exhausted if something is used up, otherwise
/// backend.
Errc code_of_errno(int number) noexcept;

/// The reason why groups and arrays may lack memory, where the system forbids memfd; empty if there
/// is none. Counts a group of 32 ranks, and the first arrays of some of them.
std::string lack_of_memory();

/// A descriptor that becomes readable when the process ends. Not open, and errno is set, if there
/// is none: the process has ended, or the kernel forbids it.
Descriptor process_descriptor(int process) noexcept;

}  // namespace tutti::backend::shm
