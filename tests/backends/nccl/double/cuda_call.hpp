#pragma once

#include <cuda_runtime_api.h>

#include "backends/nccl/double/machine.hpp"
#include "nccl/gpu.hpp"

namespace tutti::test::nccl_double {

/// One call: the lock, the count, and the error of a broken device. Calls other than those for
/// errors, versions or the choice of a device make a context on the thread's current device.
class CudaCall {
 public:
  enum class Context { made, not_made };
  explicit CudaCall(const char* called, Context context = Context::made)
      : name(called), thread(this_thread()), here(machine()), lock(here.mutex) {
    ++here.calls[called];
    ++thread.cuda_calls;
    if (context == Context::made) here.contexts.insert(thread.device);
  }

  cudaError_t give(cudaError_t error) const {
    if (error != cudaSuccess) thread.last_error = error;
    return error;
  }
  /// The device's error, or success.
  cudaError_t broken(int device) const {
    return here.devices[Machine::index(device)].faults.sticky;
  }
  Stream* stream(cudaStream_t handle) const { return here.stream(handle, thread.device, name); }

  const char* name;
  ThreadState& thread;
  Machine& here;
  Lock lock;
};

/// The functions of cuda_memory.cpp.
void fill_cuda_memory(backend::nccl::CudaApi& table);

}  // namespace tutti::test::nccl_double
