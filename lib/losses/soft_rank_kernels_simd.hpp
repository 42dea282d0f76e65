#pragma once

#include <vector>

#include "losses/soft_rank_kernel_table.hpp"

// Only there when the library is built with Highway.

namespace tutti::internal::losses {

/// The best for this machine; null: the scalar ones are.
const SoftRankKernels* simd_soft_rank_kernels() noexcept;
std::vector<const SoftRankKernels*> all_simd_soft_rank_kernels();

}  // namespace tutti::internal::losses
