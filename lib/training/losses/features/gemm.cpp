#include "losses/features/gemm.hpp"

#include <string_view>

#include "kernels/kernel_target.hpp"

namespace tutti::internal::losses {

EigenProduct* eigen_product() noexcept {
#ifndef TUTTI_EIGEN
  return nullptr;
#else
#ifdef TUTTI_EIGEN_X86
#ifdef TUTTI_HIGHWAY  // Its names of instruction sets; each needs more than the product does.
  const std::string_view target = kernel_target();
  if (target.starts_with("AVX3")) return product_avx512;
  if (target == "AVX2") return product_avx2;
#else
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
    return product_avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return product_avx2;
#endif
#endif
  return product_baseline;
#endif
}

}  // namespace tutti::internal::losses
