#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace tutti::test::nccl_double {

inline constexpr int device_count = 8;

/// What goes wrong on purpose on one device.
struct Faults {
  bool init_hangs = false;         ///< A new communicator never gets ready.
  bool stays_in_progress = false;  ///< Operations are never enqueued.
  bool finalize_hangs = false;
  bool abort_hangs = false;                ///< ncclCommAbort() returns when this is taken back.
  ncclResult_t async_error = ncclSuccess;  ///< What its communicators report; they stand still.
  std::string fails{};                     ///< The next call of this function, "ncclAllReduce",
  ncclResult_t with = ncclInternalError;   ///< fails so.
  cudaError_t sticky = cudaSuccess;        ///< What every CUDA call on the device returns.
  std::size_t pinned_room = SIZE_MAX;      ///< So many pinned bytes there are in all.
};

}  // namespace tutti::test::nccl_double
