#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace tutti::test::nccl_double {

inline constexpr int device_count = 8;

/// The planned faults of one device.
struct Faults {
  bool init_hangs = false;         ///< A new communicator never gets ready.
  bool stays_in_progress = false;  ///< Operations are never enqueued.
  bool finalize_hangs = false;
  bool abort_hangs = false;                ///< ncclCommAbort() returns when this is taken back.
  ncclResult_t async_error = ncclSuccess;  ///< Of its communicators, which then do no work.
  std::string fails{};                     ///< The next call of this function, "ncclAllReduce",
  ncclResult_t with = ncclInternalError;   ///< fails so.
  cudaError_t sticky = cudaSuccess;        ///< The result of every CUDA call on the device.
  bool mixes_reductions = false;           ///< Ranks may pass different ones, as NCCL lets them.
  std::size_t pinned_room = SIZE_MAX;      ///< The total of pinned bytes.
};

}  // namespace tutti::test::nccl_double
