#pragma once

#include <string_view>
#include <vector>

// For tests and benchmarks.

namespace tutti::internal {

/// What was built and runs on this machine, best first, named as by kernel_target(). To be called
/// before choose_kernel_target().
std::vector<std::string_view> kernel_targets();

/// Makes fold() and reduce_fn() use one of kernel_targets(), for an empty name the best. In the
/// whole process, and not while another thread reduces.
void choose_kernel_target(std::string_view name);

}  // namespace tutti::internal
