#pragma once

#include <cstdint>
#include <vector>

// A small model whose loss needs every pair of rows, with explicit derivatives.

namespace tutti::test {

/// Row-major numbers [rows, columns].
struct Matrix {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::vector<double> data{};

  Matrix(std::int64_t r, std::int64_t c)
      : rows(r), columns(c), data(static_cast<std::size_t>(r * c)) {}
  double& operator()(std::int64_t i, std::int64_t j) {
    return data[static_cast<std::size_t>(i * columns + j)];
  }
  double operator()(std::int64_t i, std::int64_t j) const {
    return data[static_cast<std::size_t>(i * columns + j)];
  }
};

/// a^T b, a b and a b^T.
Matrix transposed_times(const Matrix& a, const Matrix& b);
Matrix times(const Matrix& a, const Matrix& b);
Matrix times_transposed(const Matrix& a, const Matrix& b);

/// Rows [first, first + count).
Matrix rows_of(const Matrix& whole, std::int64_t first, std::int64_t count);

/// x [n, 3] -> tanh(x in) out [n, 2].
struct Model {
  Matrix in{3, 4};
  Matrix out{4, 2};

  Model();  ///< Parameters, always the same.
  Matrix forward(const Matrix& x) const;
  /// The gradient of a scalar by all parameters, as one list; `by_z` is its gradient by forward(x).
  std::vector<double> backward(const Matrix& x, const Matrix& by_z) const;
  std::vector<double*> parameters();
};

/// sum over rows i of weight_i (log sum over j of exp(z_i . z_j) - z_i . z_next(i)): a contrastive
/// loss in which the next row is the positive.
double pair_loss(const Matrix& z, const std::vector<double>& weights);
/// Its gradient by z.
Matrix pair_loss_gradient(const Matrix& z, const std::vector<double>& weights);

}  // namespace tutti::test
