#pragma once

#include <tutti/memory.hpp>

#include "api.hpp"

namespace tutti::backend::cuda {

/// The memory of a device, allocated and freed in stream order. Never destroyed, like
/// host_memory(): Tensors may outlive their group.
Memory& cuda_memory(const CudaApi& cuda, int device);

}  // namespace tutti::backend::cuda
