#include "api.hpp"

#include <type_traits>

#include <tutti/error.hpp>

#include "driver_api.hpp"
#include "library.hpp"

namespace tutti::backend::cuda {
namespace {

// That the types of the table are those of the header: the cast chooses among overloads.
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
  } catch (const Error&) {  // Without a driver there is none to be made.
    return true;
  }
}

CudaApi load() {
  const Library library({"libcudart.so.13", "libcudart.so.12"},
                        "install the CUDA runtime (Python: nvidia-cuda-runtime) and put its folder "
                        "into LD_LIBRARY_PATH");
  CudaApi api;
#define TUTTI_LOAD(field, function, parameters) library.load(api.field, #function);
  TUTTI_CUDA_FUNCTIONS(TUTTI_LOAD)
#undef TUTTI_LOAD
  library.load(api.get_error_name, "cudaGetErrorName");
  library.load(api.get_error_string, "cudaGetErrorString");
  api.has_context = has_context;
  return api;
}

}  // namespace

const CudaApi& cuda_api() {
  static const CudaApi api = load();
  return api;
}

}  // namespace tutti::backend::cuda
