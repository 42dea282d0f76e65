#pragma once

#include <vector>

#include "losses/soft_rank_kernel_table.hpp"

// The arithmetic of soft_rank.hpp, in double.

namespace tutti::internal::losses {

/// The best for this machine.
const SoftRankKernels& soft_rank_kernels() noexcept;

/// Plain C++: what the vector kernels are tested against, and what runs without Highway.
const SoftRankKernels& scalar_soft_rank_kernels() noexcept;

/// All that run on this machine, the scalar ones last. For tests.
std::vector<const SoftRankKernels*> all_soft_rank_kernels();

}  // namespace tutti::internal::losses
