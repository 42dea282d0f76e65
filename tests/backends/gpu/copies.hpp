#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "nccl/nccl.hpp"

// Several ranks on one device in one process: each uses a copy of NCCL's library. The statics of a
// library belong to the file it was loaded from, so a copy of the file takes the other ranks for
// processes of another host. The kernels of all ranks are in one context, where they run side by
// side; those of processes take turns.

namespace tutti::gpu {

/// A copy of a shared library in this process.
struct Copy {
  backend::nccl::NcclApi api{};
  std::uintmax_t bytes = 0;
  double copy_s = 0;
  double load_s = 0;
};

/// The file from which a library was loaded. @throws Error unsupported.
std::filesystem::path file_of(const backend::nccl::NcclApi& nccl);

/// Copies the file into the folder of temporary files, loads the copy and removes it there.
/// @throws Error resource_exhausted if the folder has no room; unsupported as load_nccl().
Copy load_copy(const std::filesystem::path& file, int number);

/// Calls `use` with the environment of one host among several: NCCL_HOSTID is "tutti-" and the
/// number, and NCCL_DEBUG_FILE, if it is set, ends with ".copy" and the number. NCCL reads both at
/// its first use in a process, and keeps them.
void as_host(int number, const std::function<void()>& use);

/// The tables of `rank` of `size` ranks on device 0. Rank 0 uses the installed library, the others
/// a copy each. The first call with so many ranks makes the missing copies and prints a line for
/// each. @throws Error.
backend::nccl::Apis apis_on_one_device(int rank, int size);

}  // namespace tutti::gpu
