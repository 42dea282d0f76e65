// libcudart.so.13 over the double (tests/backends/nccl/double), with one device. Its broken rules
// end the process with status 86.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

#include "backends/gpu/cuda_functions.hpp"
#include "backends/nccl/double/double.hpp"
#include "shared_double.hpp"
#include "trampolines.hpp"

#define TUTTI_DEFINE(field, function, parameters) TUTTI_TRAMPOLINE(function)
TUTTI_CUDA_FUNCTIONS(TUTTI_DEFINE)
TUTTI_GPU_FUNCTIONS(TUTTI_DEFINE)
TUTTI_TRAMPOLINE(cudaGetErrorName)
TUTTI_TRAMPOLINE(cudaGetErrorString)
TUTTI_TRAMPOLINE(cudaStreamGetCaptureInfo)
TUTTI_TRAMPOLINE(cudaStreamGetCaptureInfo_v2)
TUTTI_TRAMPOLINE(cudaUserObjectCreate)
TUTTI_TRAMPOLINE(cudaGraphRetainUserObject)

namespace {

namespace test_double = tutti::test::nccl_double;

const tutti::backend::nccl::CudaApi& table() {
  return *test_double::apis().cuda;
}

cudaError_t count_devices(int* count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t event_synchronize(cudaEvent_t event) {
  while (true) {
    const auto code = table().event_query(event);
    if (code != cudaErrorNotReady) return code;
    (void)table().get_last_error();
    std::this_thread::yield();
  }
}

tutti::gpu::CudaFunctions functions() {
  tutti::gpu::CudaFunctions all;
  all.event_synchronize = event_synchronize;
  all.event_elapsed_time = [](float* ms, cudaEvent_t, cudaEvent_t) {
    *ms = 1;  // The double has no clock.
    return cudaSuccess;
  };
  all.device_get_default_mem_pool = [](cudaMemPool_t* pool, int device) {
    cudaMemPoolProps properties{};
    properties.location.id = device;
    return table().mem_pool_create(pool, &properties);
  };
  all.mem_pool_destroy = [](cudaMemPool_t) { return cudaSuccess; };
  all.mem_get_info = [](std::size_t* free, std::size_t* total) {
    *free = *total = std::size_t{1} << 26;  // Calls of more would take long here.
    return cudaSuccess;
  };
  return all;
}

/// A user object: a function and what it is called with.
struct Object {
  void* what;
  cudaHostFn_t destroy;
};

/// The graph is named by its stream until the capture ends.
cudaError_t capture_info(cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long*,
                         cudaGraph_t* graph, const cudaGraphNode_t**, std::size_t*) {
  *graph = reinterpret_cast<cudaGraph_t>(stream);
  return table().stream_is_capturing(stream, status);
}

cudaError_t create_object(cudaUserObject_t* made, void* what, cudaHostFn_t destroy, unsigned,
                          unsigned) {
  *made = reinterpret_cast<cudaUserObject_t>(new Object{what, destroy});
  return cudaSuccess;
}

cudaError_t retain(cudaGraph_t graph, cudaUserObject_t handle, unsigned, unsigned) {
  const auto* object = reinterpret_cast<Object*>(handle);
  const auto code =
      table().at_graph_end(reinterpret_cast<cudaStream_t>(graph), object->what, object->destroy);
  delete object;
  return code;
}

void end() {
  const auto violations = test_double::take_violations();
  for (const auto& violation : violations)
    std::fprintf(stderr, "violation: %s\n", violation.c_str());
  std::fflush(nullptr);
  if (!violations.empty()) ::_exit(86);
}

[[gnu::constructor]] void begin() {
  const auto extra = functions();
#define TUTTI_FILL(field, function, parameters) TUTTI_FILL_SLOT(function, table().field)
  TUTTI_CUDA_FUNCTIONS(TUTTI_FILL)
#undef TUTTI_FILL
#define TUTTI_FILL(field, function, parameters) TUTTI_FILL_SLOT(function, extra.field)
  TUTTI_GPU_FUNCTIONS(TUTTI_FILL)
#undef TUTTI_FILL
  TUTTI_FILL_SLOT(cudaGetErrorName, table().get_error_name)
  TUTTI_FILL_SLOT(cudaGetErrorString, table().get_error_string)
  TUTTI_FILL_SLOT(cudaStreamGetCaptureInfo_v2, capture_info)
  TUTTI_FILL_SLOT(cudaUserObjectCreate, create_object)
  TUTTI_FILL_SLOT(cudaGraphRetainUserObject, retain)
  TUTTI_FILL_SLOT(cudaGetDeviceCount, count_devices)
  test_double::set_messages_side_by_side(true);
  test_double::set_issues_on_a_thread(true);
  (void)std::atexit(end);
}

}  // namespace

const tutti::backend::nccl::NcclApi* tutti_double_next_nccl() {
  static int copies = 0;
  return &test_double::nccl_copy(copies++);
}

const tutti::backend::nccl::DriverApi* tutti_double_driver() {
  static const auto driver = [] {
    auto made = *test_double::apis().driver;
    // The image of this build is for devices; the double has kernels of its own.
    made.library_load_data = [](CUlibrary* library, const void*, CUjit_option* options,
                                void** values, unsigned count, CUlibraryOption* more,
                                void** more_values, unsigned more_count) {
      return test_double::apis().driver->library_load_data(
          library, test_double::apis().fold_image.data(), options, values, count, more, more_values,
          more_count);
    };
    return made;
  }();
  return &driver;
}
