#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <string>
#include <vector>

#include <tutti/error.hpp>

// The functions of the CUDA runtime and of the driver as tables, for the reasons in nccl_api.hpp,
// and the texts of CUDA errors.

namespace tutti::backend::cuda {

/// Entries X(field, function, parameters); all functions return cudaError_t. The types are written
/// out because cuda_runtime.h, which nccl.h includes, overloads some of the names.
#define TUTTI_CUDA_FUNCTIONS(X)                                                                   \
  X(get_device_count, cudaGetDeviceCount, (int* count))                                           \
  X(get_device, cudaGetDevice, (int* device))                                                     \
  X(set_device, cudaSetDevice, (int device))                                                      \
  X(malloc_async, cudaMallocAsync, (void** data, std::size_t bytes, cudaStream_t stream))         \
  X(free_async, cudaFreeAsync, (void* data, cudaStream_t stream))                                 \
  X(mem_pool_create, cudaMemPoolCreate,                                                           \
    (cudaMemPool_t * pool, const cudaMemPoolProps* properties))                                   \
  X(mem_pool_set_attribute, cudaMemPoolSetAttribute,                                              \
    (cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value))                                 \
  X(mem_pool_trim_to, cudaMemPoolTrimTo, (cudaMemPool_t pool, std::size_t keep))                  \
  X(malloc_from_pool_async, cudaMallocFromPoolAsync,                                              \
    (void** data, std::size_t bytes, cudaMemPool_t pool, cudaStream_t stream))                    \
  X(host_alloc, cudaHostAlloc, (void** data, std::size_t bytes, unsigned int flags))              \
  X(free_host, cudaFreeHost, (void* data))                                                        \
  X(memcpy_async, cudaMemcpyAsync,                                                                \
    (void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream))    \
  X(memset_async, cudaMemsetAsync,                                                                \
    (void* data, int value, std::size_t bytes, cudaStream_t stream))                              \
  X(pointer_get_attributes, cudaPointerGetAttributes,                                             \
    (cudaPointerAttributes * attributes, const void* data))                                       \
  X(stream_create_with_flags, cudaStreamCreateWithFlags,                                          \
    (cudaStream_t * stream, unsigned int flags))                                                  \
  X(stream_create_with_priority, cudaStreamCreateWithPriority,                                    \
    (cudaStream_t * stream, unsigned int flags, int priority))                                    \
  X(stream_destroy, cudaStreamDestroy, (cudaStream_t stream))                                     \
  X(stream_synchronize, cudaStreamSynchronize, (cudaStream_t stream))                             \
  X(stream_wait_event, cudaStreamWaitEvent,                                                       \
    (cudaStream_t stream, cudaEvent_t event, unsigned int flags))                                 \
  X(stream_is_capturing, cudaStreamIsCapturing,                                                   \
    (cudaStream_t stream, cudaStreamCaptureStatus * status))                                      \
  X(thread_exchange_stream_capture_mode, cudaThreadExchangeStreamCaptureMode,                     \
    (cudaStreamCaptureMode * mode))                                                               \
  X(stream_begin_capture, cudaStreamBeginCapture,                                                 \
    (cudaStream_t stream, cudaStreamCaptureMode mode))                                            \
  X(stream_end_capture, cudaStreamEndCapture, (cudaStream_t stream, cudaGraph_t * graph))         \
  X(graph_instantiate_with_flags, cudaGraphInstantiateWithFlags,                                  \
    (cudaGraphExec_t * executable, cudaGraph_t graph, unsigned long long flags))                  \
  X(graph_launch, cudaGraphLaunch, (cudaGraphExec_t executable, cudaStream_t stream))             \
  X(graph_exec_destroy, cudaGraphExecDestroy, (cudaGraphExec_t executable))                       \
  X(graph_destroy, cudaGraphDestroy, (cudaGraph_t graph))                                         \
  X(event_create_with_flags, cudaEventCreateWithFlags, (cudaEvent_t * event, unsigned int flags)) \
  X(event_record, cudaEventRecord, (cudaEvent_t event, cudaStream_t stream))                      \
  X(event_query, cudaEventQuery, (cudaEvent_t event))                                             \
  X(event_destroy, cudaEventDestroy, (cudaEvent_t event))                                         \
  X(get_last_error, cudaGetLastError, ())                                                         \
  X(runtime_get_version, cudaRuntimeGetVersion, (int* version))                                   \
  X(driver_get_version, cudaDriverGetVersion, (int* version))

/// A value type. No entry is null.
struct CudaApi {
#define TUTTI_FIELD(field, function, parameters) cudaError_t(*field) parameters = nullptr;
  TUTTI_CUDA_FUNCTIONS(TUTTI_FIELD)
#undef TUTTI_FIELD
  const char* (*get_error_name)(cudaError_t error) = nullptr;
  const char* (*get_error_string)(cudaError_t error) = nullptr;
  /// Calls destroy(object), on any thread, when the graph into which `stream` is captured and all
  /// its copies have been destroyed. `destroy` must not call CUDA.
  cudaError_t (*at_graph_end)(cudaStream_t stream, void* object, void (*destroy)(void*)) = nullptr;
  /// True when this process has a context on the device, or when the driver does not say. Does not
  /// create a context.
  bool (*has_context)(int device) = nullptr;
};

/// Entries X(field, function): the functions that load and launch kernels or that query a device
/// without a context. Drivers for CUDA 12.0, which cudart 12 requires, have all of them.
#define TUTTI_CUDA_DRIVER_FUNCTIONS(X)                        \
  X(driver_get_version, cuDriverGetVersion)                   \
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

/// The functions of the installed libraries, loaded at the first call and never unloaded.
/// @throws Error unsupported; its text names the missing library, the reason and what to install.
const CudaApi& cuda_api();
const DriverApi& driver_api();

/// The names of the CUDA runtimes that a driver for CUDA `driver` (12040 is 12.4) serves, the
/// preferred one first; 0: the driver is unknown.
std::vector<const char*> runtime_names(int driver);
/// The reason why no device can be used, and what to install; empty when there is a device. @throws
/// Error if CUDA fails for another reason.
std::string absent(const CudaApi& cuda);
/// The number of devices; 0 if it cannot be queried.
int count_devices() noexcept;
/// "13.0" of 13000.
std::string version_text(int code);

/// The error of the runtime's function `call`, which returned `code`: resource_exhausted without
/// memory, otherwise backend. The text says so if this process cannot use the device any more.
/// Resets the thread's last CUDA error.
Error cuda_error(const CudaApi& cuda, cudaError_t code, const char* call);

inline void check(const CudaApi& cuda, cudaError_t code, const char* call) {
  if (code != cudaSuccess) [[unlikely]]
    throw cuda_error(cuda, code, call);
}

}  // namespace tutti::backend::cuda
