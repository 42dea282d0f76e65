#pragma once

#include <cstddef>

// The arithmetic of soft_rank.hpp, in double. T_n are the Chebyshev polynomials, σ the logistic
// function, σ' its derivative.

namespace tutti::internal::losses {

/// The number of terms of a series in one cell. In cells of two temperatures, the nearest poles of
/// σ are pi half-widths away. Each term therefore reduces the error by a factor of 6.4: 16 terms
/// reach 1e-13.
inline constexpr std::size_t terms = 16;

struct SoftRankKernels {
  /// moments[n] += sum over i of weights[i] T_n(x[i]). Null weights are all 1.
  void (*moments)(const double* x, const double* weights, std::size_t count, double* moments);
  /// out[m] += sum over n of matrix[n * terms + m] in[n].
  void (*translate)(const double* matrix, const double* in, double* out);
  /// out[i] = sum over n < size of series[n] T_n(x[i]).
  void (*evaluate)(const double* x, std::size_t count, const double* series, std::size_t size,
                   double* out);
  /// sums[0] += sum over j of σ((s[j] - at) * scale). sums[1] += the same sum of σ'.
  void (*pairs)(const double* s, std::size_t count, double at, double scale, double* sums);
  /// sums[0] += sum over j of a[j] σ'((s[j] - at) * scale). sums[1] += the same sum with b, unless
  /// b is null.
  void (*slopes)(const double* s, const double* a, const double* b, std::size_t count, double at,
                 double scale, double* sums);
};

/// Returns the fastest kernels for the instruction set kernel_target().
const SoftRankKernels& soft_rank_kernels() noexcept;

/// Returns the kernels in plain C++, for builds without Highway and as the reference in tests.
const SoftRankKernels& scalar_soft_rank_kernels() noexcept;

/// Returns the vector kernels, or null if the scalar kernels are as fast. Defined only in builds
/// with Highway.
const SoftRankKernels* simd_soft_rank_kernels() noexcept;

}  // namespace tutti::internal::losses
