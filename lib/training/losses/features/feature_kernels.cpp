#include "losses/features/feature_kernels.hpp"

#include <algorithm>
#include <cmath>

namespace tutti::internal::losses {
namespace {

template <typename T>
void log_sum_of(const Block<T>& block, double scale, LogSum* sums) {
  for (std::size_t i = 0; i < block.rows; ++i) {
    const T* k = block.k + i * block.stride;
    const T most = *std::max_element(k, k + block.columns);
    if (most == no_pair<T>) continue;
    auto& [row_most, sum] = sums[i];
    if (most > row_most) {
      sum *= std::exp(scale * (row_most - most));
      row_most = most;
    }
    const T center = static_cast<T>(row_most);
    for (std::size_t j = 0; j < block.columns; ++j)
      sum += std::exp(static_cast<T>(scale) * (k[j] - center));
  }
}

template <typename T>
void softmax_of(const Block<T>& block, const SoftmaxTerms<T>& terms) {
  for (std::size_t i = 0; i < block.rows; ++i) {
    T* k = block.k + i * block.stride;
    const T center = terms.row_center[i];
    const T weight = terms.row_weight[i];
    for (std::size_t j = 0; j < block.columns; ++j) {
      const T own = std::exp(std::min(T{0}, terms.scale * (k[j] - center)));
      T result = weight * (own - terms.floor);
      const T column_weight = terms.column_weight[j];
      if (terms.row_factor != nullptr)
        result += std::min(column_weight, own * (terms.row_factor[i] * terms.column_factor[j]));
      else
        result +=
            column_weight * std::exp(std::min(T{0}, terms.scale * (k[j] - terms.column_center[j])));
      k[j] = result - column_weight * terms.floor;
    }
  }
}

template <typename T>
void logistic_of(const Block<T>& block, const LogisticTerms<T>& terms) {
  for (std::size_t i = 0; i < block.rows; ++i) {
    T* k = block.k + i * block.stride;
    double linear = 0;
    double product = 0;  // The product of 1 + exp(-|z|) of all columns, minus 1.
    double slopes = 0;
    for (std::size_t j = 0; j < block.columns; ++j) {
      const T z = terms.scale * k[j] + terms.bias;
      const T e = std::exp(-std::abs(z));
      const T large = 1 / (1 + e);
      linear += std::max(z, T{0});
      product += e + product * e;
      k[j] = (z > 0 ? large : e * large) * (terms.row_weight[i] + terms.column_weight[j]);
      slopes += k[j];
    }
    terms.softplus[i] += linear + std::log1p(product);
    terms.slopes[i] += slopes;
  }
}

template <typename T>
void add_to(double* sums, const T* more, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) sums[i] += more[i];
}

}  // namespace

template <typename T>
const FeatureKernels<T>& scalar_feature_kernels() noexcept {
  static constexpr FeatureKernels<T> kernels{log_sum_of<T>, softmax_of<T>, logistic_of<T>,
                                             add_to<T>};
  return kernels;
}
template const FeatureKernels<float>& scalar_feature_kernels() noexcept;
template const FeatureKernels<double>& scalar_feature_kernels() noexcept;

template <typename T>
const FeatureKernels<T>& feature_kernels() noexcept {
#ifdef TUTTI_HIGHWAY
  if (const auto* best = simd_feature_kernels(T{})) return *best;
#endif
  return scalar_feature_kernels<T>();
}
template const FeatureKernels<float>& feature_kernels() noexcept;
template const FeatureKernels<double>& feature_kernels() noexcept;

}  // namespace tutti::internal::losses
