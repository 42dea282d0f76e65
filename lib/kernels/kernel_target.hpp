#pragma once

#include <string_view>
#include <vector>

// The instruction set that the kernels use. Without Highway there is "scalar" alone.

namespace tutti::internal {

/// What it runs on here: "scalar", "AVX3", ...
const char* kernel_target() noexcept;

/// For tests and benchmarks. What was built and runs on this machine, best first, named as by
/// kernel_target(). To be called before choose_kernel_target().
std::vector<std::string_view> kernel_targets();
/// Makes all kernels use one of kernel_targets(), for an empty name the best. In the whole process,
/// and not while another thread uses them.
void choose_kernel_target(std::string_view name);

}  // namespace tutti::internal
