#pragma once

#include <memory>

#include <tutti/memory.hpp>

#include "api.hpp"

namespace tutti::backend::cuda {

/// The memory of a device, allocated and freed in stream order. Never destroyed, like
/// host_memory(): Tensors may outlive their group.
Memory& cuda_memory(const CudaApi& cuda, int device);

/// The same from a pool of the library, for scratch memory of calls. CUDA's default pool returns
/// unused memory to the device at each synchronization, and may make a stream wait for another one
/// whose memory it reuses, behind a kernel that waits for a peer. This pool does neither. Once the
/// last owner of the result is gone, the pool returns the memory that is free, as far as the host
/// has seen the stream reach its release.
std::shared_ptr<Memory> scratch_memory(const CudaApi& cuda, int device);

}  // namespace tutti::backend::cuda
