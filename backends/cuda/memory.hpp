#pragma once

#include <tutti/memory.hpp>

#include "api.hpp"

namespace tutti::backend::cuda {

/// The memory of a device, allocated and freed in the order of streams. Lives for ever, like
/// host_memory(): Tensors may outlive their group.
Memory& cuda_memory(const CudaApi& cuda, int device);

}  // namespace tutti::backend::cuda
