#include "api.hpp"

#include <type_traits>

#include <fmt/format.h>

#include "values/library.hpp"

namespace tutti::backend::cuda {
namespace {

// Checks the types of the table against the header. The cast chooses among overloads.
#define TUTTI_SAME(field, function, parameters) \
  static_assert(                                \
      std::is_function_v<                       \
          std::remove_pointer_t<decltype(static_cast<decltype(CudaApi::field)>(&function))>>);
TUTTI_CUDA_FUNCTIONS(TUTTI_SAME)
#undef TUTTI_SAME

bool has_context(int device) {
  try {
    CUdevice found = 0;
    unsigned int flags = 0;
    int active = 1;
    return driver_api().device_get(&found, device) != CUDA_SUCCESS ||
           driver_api().device_primary_ctx_get_state(found, &flags, &active) != CUDA_SUCCESS ||
           active != 0;
  } catch (const Error&) {  // Without a driver it is unknown.
    return true;
  }
}

/// The functions of at_graph_end(). The runtime 12 has capture_info_v2; the runtime 13 has a
/// function with a parameter more under the name without a version.
struct GraphFunctions {
  cudaError_t (*capture_info_v2)(cudaStream_t, cudaStreamCaptureStatus*, unsigned long long*,
                                 cudaGraph_t*, const cudaGraphNode_t**, std::size_t*);
  cudaError_t (*capture_info)(cudaStream_t, cudaStreamCaptureStatus*, unsigned long long*,
                              cudaGraph_t*, const cudaGraphNode_t**, const void**, std::size_t*);
  cudaError_t (*create)(cudaUserObject_t*, void*, cudaHostFn_t, unsigned int, unsigned int);
  cudaError_t (*retain)(cudaGraph_t, cudaUserObject_t, unsigned int, unsigned int);
};
GraphFunctions graph_functions{};  // Constant after load_runtime().

cudaError_t at_graph_end(cudaStream_t stream, void* object, void (*destroy)(void*)) {
  const auto& call = graph_functions;
  cudaStreamCaptureStatus status{};
  cudaGraph_t graph = nullptr;
  cudaUserObject_t made = nullptr;
  auto code = call.capture_info_v2 != nullptr
                  ? call.capture_info_v2(stream, &status, nullptr, &graph, nullptr, nullptr)
                  : call.capture_info(stream, &status, nullptr, &graph, nullptr, nullptr, nullptr);
  if (code != cudaSuccess) return code;
  code = call.create(&made, object, destroy, 1, cudaUserObjectNoDestructorSync);
  return code != cudaSuccess ? code : call.retain(graph, made, 1, cudaGraphUserObjectMove);
}

CudaApi load_runtime() {
  int driver = 0;
  try {
    if (driver_api().driver_get_version(&driver) != CUDA_SUCCESS) driver = 0;
  } catch (const Error&) {  // absent() says so.
  }
  const internal::Library library(
      runtime_names(driver),
      "install the CUDA runtime (Python: nvidia-cuda-runtime) and put its folder "
      "into LD_LIBRARY_PATH");
  CudaApi api;
#define TUTTI_LOAD(field, function, parameters) library.load(api.field, #function);
  TUTTI_CUDA_FUNCTIONS(TUTTI_LOAD)
#undef TUTTI_LOAD
  library.load(api.get_error_name, "cudaGetErrorName");
  library.load(api.get_error_string, "cudaGetErrorString");
  library.load_if_there(graph_functions.capture_info_v2, "cudaStreamGetCaptureInfo_v2");
  library.load(graph_functions.capture_info, "cudaStreamGetCaptureInfo");
  library.load(graph_functions.create, "cudaUserObjectCreate");
  library.load(graph_functions.retain, "cudaGraphRetainUserObject");
  api.at_graph_end = at_graph_end;
  api.has_context = has_context;
  return api;
}

DriverApi load_driver() {
  const internal::Library library({"libcuda.so.1"},
                                  "install an NVIDIA driver for CUDA 12.0 or newer");
  DriverApi api;
#define TUTTI_LOAD(field, function) library.load(api.field, #function);
  TUTTI_CUDA_DRIVER_FUNCTIONS(TUTTI_LOAD)
#undef TUTTI_LOAD
  return api;
}

/// True for errors that destroy the device's context: every later call of this process fails.
bool is_sticky(cudaError_t code) {
  // Missing in some headers: cudaErrorContained, TensorMemoryLeak, MpsClientTerminated and
  // ExternalDevice.
  for (const int newer : {226, 721, 810, 911})
    if (static_cast<int>(code) == newer) return true;
  switch (code) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

}  // namespace

const CudaApi& cuda_api() {
  static const CudaApi api = load_runtime();
  return api;
}

const DriverApi& driver_api() {
  static const DriverApi api = load_driver();
  return api;
}

std::vector<const char*> runtime_names(int driver) {
  if (driver != 0 && driver < 13000) return {"libcudart.so.12"};
  return {"libcudart.so.13", "libcudart.so.12"};
}

std::string version_text(int code) {
  return fmt::format("{}.{}", code / 1000, code % 1000 / 10);
}

std::string absent(const CudaApi& cuda) {
  int count = 0;
  int runtime = 0;
  check(cuda, cuda.runtime_get_version(&runtime), "cudaRuntimeGetVersion");
  const auto answer = cuda.get_device_count(&count);
  if (answer == cudaErrorInsufficientDriver || answer == cudaErrorNoDevice)
    return fmt::format(
        "CUDA sees no device; libcuda.so.1 of an NVIDIA driver for CUDA {} or newer is needed: {}",
        version_text(runtime), cuda_error(cuda, answer, "cudaGetDeviceCount").message());
  check(cuda, answer, "cudaGetDeviceCount");
  return count == 0 ? "CUDA sees no device" : "";
}

int count_devices() noexcept {
  try {
    int count = 0;
    check(cuda_api(), cuda_api().get_device_count(&count), "cudaGetDeviceCount");
    return count;
  } catch (...) {
    return 0;
  }
}

Error cuda_error(const CudaApi& cuda, cudaError_t code, const char* call) {
  // Resets the thread's last error, so that the program does not see it.
  (void)cuda.get_last_error();
  const auto errc = code == cudaErrorMemoryAllocation ? Errc::resource_exhausted : Errc::backend;
  return {errc, fmt::format("{} failed: {} ({}){}", call, cuda.get_error_name(code),
                            cuda.get_error_string(code),
                            is_sticky(code) ? "; this process cannot use the device any more: "
                                              "restart the process"
                                            : "")};
}

}  // namespace tutti::backend::cuda
