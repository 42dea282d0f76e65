#pragma once

#include <string>

#include "api.hpp"

namespace tutti::backend::cuda {

/// Why no device can be used, and what to install; empty when there is one.
std::string absent(const CudaApi& cuda);

/// 0 where there is none, or no CUDA.
int count_devices() noexcept;

/// "13.0" of 13000.
std::string version_text(int code);

}  // namespace tutti::backend::cuda
