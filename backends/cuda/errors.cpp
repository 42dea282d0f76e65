#include "errors.hpp"

#include <fmt/format.h>

namespace tutti::backend::cuda {
namespace {

/// True when every later call in this process fails, too: the context of the device is lost.
bool is_sticky(cudaError_t code) {
  // Newer than some headers: cudaErrorContained, TensorMemoryLeak, MpsClientTerminated and
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

Error cuda_error(const CudaApi& cuda, cudaError_t code, const char* call) {
  // Otherwise the program finds it as the thread's last error.
  (void)cuda.get_last_error();
  const auto errc = code == cudaErrorMemoryAllocation ? Errc::resource_exhausted : Errc::backend;
  return {errc, fmt::format("{} failed: {} ({}){}", call, cuda.get_error_name(code),
                            cuda.get_error_string(code),
                            is_sticky(code) ? "; the device can not be used by this process any "
                                              "more: restart it"
                                            : "")};
}

}  // namespace tutti::backend::cuda
