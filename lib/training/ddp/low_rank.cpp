#include "ddp/low_rank.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <type_traits>
#include <utility>

namespace tutti::ddp {
namespace {

constexpr int attempts = 4;  // Random columns tried in place of a dependent column.

/// Adds products in 16 lanes, which compilers can vectorise, in a fixed order.
template <typename Sum, typename T>
Sum dot(const T* a, const T* b, std::int64_t n) {
  constexpr std::int64_t lanes = 16;
  std::array<Sum, lanes> sums{};
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes)
    for (std::int64_t lane = 0; lane < lanes; ++lane)
      sums[static_cast<std::size_t>(lane)] +=
          static_cast<Sum>(a[i + lane]) * static_cast<Sum>(b[i + lane]);
  for (; i < n; ++i) sums[0] += static_cast<Sum>(a[i]) * static_cast<Sum>(b[i]);
  Sum sum = 0;
  for (const Sum lane : sums) sum += lane;
  return sum;
}

template <typename T>
double norm(const T* column, std::int64_t n) {
  return std::sqrt(dot<double>(column, column, n));
}

/// If projections leave less than this part of a column's length, the rest is rounding error.
template <typename T>
constexpr double negligible = std::is_same_v<T, float> ? 1e-6 : 1e-14;

/// Subtracts from column k its projections on the columns before it. Returns the remaining length.
template <typename T>
double project_out(T* columns, std::int64_t n, int k) {
  T* column = columns + k * n;
  for (int j = 0; j < k; ++j) {
    const T* other = columns + j * n;
    const auto part = static_cast<T>(dot<double>(other, column, n));
    for (std::int64_t i = 0; i < n; ++i) column[i] -= part * other[i];
  }
  return norm(column, n);
}

/// Makes column k orthogonal to the columns before it and of length 1. Returns false if nothing of
/// it remains or its length is not finite.
template <typename T>
bool orthonormalize(T* columns, std::int64_t n, int k, double epsilon) {
  T* column = columns + k * n;
  const double before = norm(column, n);
  double length = project_out(columns, n, k);
  bool depends = length == 0;
  if (epsilon == 0 && k > 0) {
    // The first pass leaves rounding errors. A remainder of rounding errors becomes much shorter in
    // the second pass.
    const double once = std::exchange(length, project_out(columns, n, k));
    depends = length <= before * negligible<T> || length < once / 2;
  }
  if (depends) {
    std::fill_n(column, n, T(0));
    return false;
  }
  const double divisor = length + epsilon;
  for (std::int64_t i = 0; i < n; ++i)
    column[i] = static_cast<T>(static_cast<double>(column[i]) / divisor);
  return std::isfinite(length);
}

}  // namespace

template <typename T>
void multiply(const T* m, std::int64_t rows, std::int64_t columns, const T* q, int rank, T* p) {
  for (std::int64_t i = 0; i < rows; ++i)
    for (int k = 0; k < rank; ++k)
      p[k * rows + i] = dot<T>(m + i * columns, q + k * columns, columns);
}

template <typename T>
void multiply_transposed(const T* m, std::int64_t rows, std::int64_t columns, const T* p, int rank,
                         T* q) {
  std::fill_n(q, rank * columns, T(0));
  for (std::int64_t i = 0; i < rows; ++i)
    for (int k = 0; k < rank; ++k) {
      const T factor = p[k * rows + i];
      const T* in = m + i * columns;
      T* out = q + k * columns;
      for (std::int64_t j = 0; j < columns; ++j) out[j] += factor * in[j];
    }
}

template <typename T>
void product_row(const T* p, std::int64_t rows, std::int64_t row, const T* q, std::int64_t columns,
                 int rank, T* out) {
  std::fill_n(out, columns, T(0));
  for (int k = 0; k < rank; ++k) {
    const T factor = p[k * rows + row];
    const T* in = q + k * columns;
    for (std::int64_t j = 0; j < columns; ++j) out[j] += factor * in[j];
  }
}

template <typename T>
void orthogonalize(T* columns, std::int64_t length, int rank, double epsilon,
                   const std::function<void(int)>& refill) {
  for (int k = 0; k < rank; ++k) {
    bool done = orthonormalize(columns, length, k, epsilon);
    for (int i = 0; refill && !done && i < attempts; ++i) {
      refill(k);
      done = orthonormalize(columns, length, k, epsilon);
    }
  }
}

template void multiply(const float*, std::int64_t, std::int64_t, const float*, int, float*);
template void multiply(const double*, std::int64_t, std::int64_t, const double*, int, double*);
template void multiply_transposed(const float*, std::int64_t, std::int64_t, const float*, int,
                                  float*);
template void multiply_transposed(const double*, std::int64_t, std::int64_t, const double*, int,
                                  double*);
template void product_row(const float*, std::int64_t, std::int64_t, const float*, std::int64_t, int,
                          float*);
template void product_row(const double*, std::int64_t, std::int64_t, const double*, std::int64_t,
                          int, double*);
template void orthogonalize(float*, std::int64_t, int, double, const std::function<void(int)>&);
template void orthogonalize(double*, std::int64_t, int, double, const std::function<void(int)>&);

}  // namespace tutti::ddp
