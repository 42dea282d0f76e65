#pragma once

#include <string_view>
#include <vector>

// The instruction set of the kernels. Without Highway only "scalar" exists.

namespace tutti::internal {

/// The instruction set in use: "scalar", "AVX3", ...
[[gnu::visibility("default")]] const char* kernel_target() noexcept;

/// Lists the instruction sets that were built and run on this machine, best first, named as by
/// kernel_target(). For tests and benchmarks. Call it before choose_kernel_target().
std::vector<std::string_view> kernel_targets();
/// Selects one of kernel_targets() for all kernels of the process; an empty name selects the best.
/// No other thread may use kernels during the call.
void choose_kernel_target(std::string_view name);

}  // namespace tutti::internal
