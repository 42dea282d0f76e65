#pragma once

#include <cuda.h>

// The functions of the CUDA driver as a table, for the reasons of nccl_api.hpp: what loads kernels
// and launches them, and what is known of a device without touching it.

namespace tutti::backend::cuda {

/// field, function. All of it is in drivers for CUDA 12.0, which cudart 12 needs anyway.
#define TUTTI_CUDA_DRIVER_FUNCTIONS(X)                        \
  X(device_get, cuDeviceGet)                                  \
  X(device_primary_ctx_get_state, cuDevicePrimaryCtxGetState) \
  X(library_load_data, cuLibraryLoadData)                     \
  X(library_get_kernel, cuLibraryGetKernel)                   \
  X(launch_kernel, cuLaunchKernel)                            \
  X(get_error_name, cuGetErrorName)                           \
  X(get_error_string, cuGetErrorString)

/// A value type. No entry is null.
struct DriverApi {
#define TUTTI_FIELD(field, function) decltype(&::function) field = nullptr;
  TUTTI_CUDA_DRIVER_FUNCTIONS(TUTTI_FIELD)
#undef TUTTI_FIELD
};

/// The driver's, found at the first call and kept for ever.
/// @throws Error unsupported: which library was looked for, why it did not do, what to install.
const DriverApi& driver_api();

}  // namespace tutti::backend::cuda
