#include "api.hpp"

#include <type_traits>

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
  return api;
}

}  // namespace

const CudaApi& cuda_api() {
  static const CudaApi api = load();
  return api;
}

}  // namespace tutti::backend::cuda
