#pragma once

#include <cstddef>

// The arithmetic of soft_rank.hpp, in double. T_n are the Chebyshev polynomials, σ the logistic
// function, σ' its derivative.

namespace tutti::internal::losses {

/// Terms of a series in one cell. With cells of two temperatures the nearest poles of σ are pi
/// half-widths away, so every term gains a factor of 6.4: 16 terms reach 1e-13.
inline constexpr std::size_t terms = 16;

struct SoftRankKernels {
  /// moments[n] += sum over i of weights[i] T_n(x[i]); without weights they are 1.
  void (*moments)(const double* x, const double* weights, std::size_t count, double* moments);
  /// out[m] += sum over n of matrix[n * terms + m] in[n].
  void (*translate)(const double* matrix, const double* in, double* out);
  /// out[i] = sum over n < size of series[n] T_n(x[i]).
  void (*evaluate)(const double* x, std::size_t count, const double* series, std::size_t size,
                   double* out);
  /// sums[0] += sum over j of σ((s[j] - at) * scale), sums[1] += the same of σ'.
  void (*pairs)(const double* s, std::size_t count, double at, double scale, double* sums);
  /// sums[0] += sum over j of a[j] σ'((s[j] - at) * scale), sums[1] += the same of b
  /// unless that is null.
  void (*slopes)(const double* s, const double* a, const double* b, std::size_t count, double at,
                 double scale, double* sums);
};

/// The kernels of kernel_target().
const SoftRankKernels& soft_rank_kernels() noexcept;

/// Plain C++: the reference of the vector kernels' tests, and the kernels without Highway.
const SoftRankKernels& scalar_soft_rank_kernels() noexcept;

/// Defined only in builds with Highway. Null: the scalar kernels are as fast.
const SoftRankKernels* simd_soft_rank_kernels() noexcept;

}  // namespace tutti::internal::losses
