#include "absent.hpp"

#include <fmt/format.h>

#include "errors.hpp"

namespace tutti::backend::cuda {

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

}  // namespace tutti::backend::cuda
