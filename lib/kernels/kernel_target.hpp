#pragma once

#include <string_view>
#include <vector>

// The instruction set of the kernels. Without Highway the only one is "scalar".

namespace tutti::internal {

/// The instruction set in use: "scalar", "AVX3", ...
const char* kernel_target() noexcept;

/// For tests and benchmarks. The instruction sets that were built and run on this machine, best
/// first, named as by kernel_target(). Call it before choose_kernel_target().
std::vector<std::string_view> kernel_targets();
/// Selects one of kernel_targets() for all kernels of the process; an empty name selects the best.
/// No other thread may use kernels meanwhile.
void choose_kernel_target(std::string_view name);

}  // namespace tutti::internal
