#pragma once

#include <cstddef>
#include <limits>

// The arithmetic on blocks of logits: exponentials and their sums. T is float or double; sums are
// double. A block is [rows, columns], row-major, with `stride` elements from row to row. A row's
// results depend on that row alone. Rows are padded to a multiple of `block_lanes` columns with
// `no_pair`, whose exponential is 0.

namespace tutti::internal::losses {

/// No vector has more lanes of float.
inline constexpr std::size_t block_lanes = 64;

template <typename T>
inline constexpr T no_pair = std::numeric_limits<T>::lowest();

template <typename T>
struct Block {
  T* k = nullptr;  ///< Dot products; kernels of gradients write weights of features here.
  std::size_t rows = 0, columns = 0, stride = 0;  ///< `columns` with the padding.
};

/// The largest product of a row and the sum of exp(scale (k - most)). Starts as {no_pair, 0}.
struct LogSum {
  double most = std::numeric_limits<double>::lowest(), sum = 0;
};

/// The softmax over a row, exp(scale (k - row_center)), times its weight, plus that over a column.
/// The softmax over a column, times its weight, equals the softmax over the row, times row_factor
/// and column_factor, which saves an exp. A center comes from products that may have been rounded
/// otherwise than k, so each softmax is capped at 1.
template <typename T>
struct SoftmaxTerms {
  T scale = 0, floor = 0;  ///< `floor` is subtracted from each softmax.
  const T* row_center = nullptr;
  const T* row_weight = nullptr;
  const T* row_factor = nullptr;  ///< Null: the column's softmax takes a second exp.
  const T* column_center = nullptr;
  const T* column_weight = nullptr;
  const T* column_factor = nullptr;  ///< Includes the column's weight.
};

/// σ(scale k + bias) times the sum of both weights.
template <typename T>
struct LogisticTerms {
  T scale = 0, bias = 0;
  const T* row_weight = nullptr;
  const T* column_weight = nullptr;
  double* softplus = nullptr;  ///< By row: += sum of log(1 + exp(scale k + bias)).
  double* slopes = nullptr;    ///< By row: += sum of the results.
};

template <typename T>
struct FeatureKernels {
  void (*log_sum)(const Block<T>& block, double scale, LogSum* sums);
  void (*softmax)(const Block<T>& block, const SoftmaxTerms<T>& terms);
  void (*logistic)(const Block<T>& block, const LogisticTerms<T>& terms);
  /// sums[i] += more[i].
  void (*add)(double* sums, const T* more, std::size_t count);
};

/// Returns the fastest kernels for the instruction set kernel_target().
template <typename T>
const FeatureKernels<T>& feature_kernels() noexcept;
/// Returns the kernels in plain C++, for builds without Highway.
template <typename T>
const FeatureKernels<T>& scalar_feature_kernels() noexcept;

/// The vector kernels, or null where the scalar kernels are as fast. Only in builds with Highway.
const FeatureKernels<float>* simd_feature_kernels(float) noexcept;
const FeatureKernels<double>* simd_feature_kernels(double) noexcept;

}  // namespace tutti::internal::losses
