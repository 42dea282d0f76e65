#include "losses/soft_rank_kernels.hpp"

#include <cmath>

namespace tutti::internal::losses {
namespace {

void moments(const double* x, const double* weights, std::size_t count, double* out) {
  for (std::size_t i = 0; i < count; ++i) {
    double before = weights == nullptr ? 1 : weights[i];
    double now = before * x[i];
    out[0] += before;
    for (std::size_t n = 1; n < terms; ++n) {
      out[n] += now;
      const double next = 2 * x[i] * now - before;
      before = now;
      now = next;
    }
  }
}

void translate(const double* matrix, const double* in, double* out) {
  for (std::size_t n = 0; n < terms; ++n)
    for (std::size_t m = 0; m < terms; ++m) out[m] += matrix[n * terms + m] * in[n];
}

void evaluate(const double* x, std::size_t count, const double* series, std::size_t size,
              double* out) {
  for (std::size_t i = 0; i < count; ++i) {  // Clenshaw's recurrence.
    double b1 = 0;
    double b2 = 0;
    for (std::size_t n = size - 1; n > 0; --n) {
      const double b0 = series[n] + 2 * x[i] * b1 - b2;
      b2 = b1;
      b1 = b0;
    }
    out[i] = series[0] + x[i] * b1 - b2;
  }
}

void pairs(const double* s, std::size_t count, double at, double scale, double* sums) {
  double value = 0;
  double slope = 0;
  for (std::size_t j = 0; j < count; ++j) {
    const double x = (s[j] - at) * scale;
    const double e = std::exp(-std::abs(x));
    const double large = 1 / (1 + e);
    const double small = e * large;
    value += x > 0 ? large : small;
    slope += large * small;
  }
  sums[0] += value;
  sums[1] += slope;
}

void slopes(const double* s, const double* a, const double* b, std::size_t count, double at,
            double scale, double* sums) {
  double by_a = 0;
  double by_b = 0;
  for (std::size_t j = 0; j < count; ++j) {
    const double e = std::exp(-std::abs((s[j] - at) * scale));
    const double large = 1 / (1 + e);
    const double slope = large * large * e;
    by_a += a[j] * slope;
    if (b != nullptr) by_b += b[j] * slope;
  }
  sums[0] += by_a;
  sums[1] += by_b;
}

}  // namespace

const SoftRankKernels& scalar_soft_rank_kernels() noexcept {
  static constexpr SoftRankKernels kernels{moments, translate, evaluate, pairs, slopes};
  return kernels;
}

const SoftRankKernels& soft_rank_kernels() noexcept {
#ifdef TUTTI_HIGHWAY
  if (const auto* best = simd_soft_rank_kernels()) return *best;
#endif
  return scalar_soft_rank_kernels();
}

}  // namespace tutti::internal::losses
