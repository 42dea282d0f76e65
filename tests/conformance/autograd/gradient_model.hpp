#pragma once

#include <cstdint>
#include <vector>

// A small model whose loss needs every pair of rows, with its derivatives written out.

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

  Model();  ///< Some parameters, always the same.
  Matrix forward(const Matrix& x) const;
  /// The gradient by all parameters, in a row, of a scalar whose gradient by forward(x) is `by_z`.
  std::vector<double> backward(const Matrix& x, const Matrix& by_z) const;
  std::vector<double*> parameters();
};

/// sum over rows i of weight_i (log sum over j of exp(z_i . z_j) - z_i . z_next(i)): every row is
/// to be told from all others, and to be near the next one.
double pair_loss(const Matrix& z, const std::vector<double>& weights);
/// Its gradient by z.
Matrix pair_loss_gradient(const Matrix& z, const std::vector<double>& weights);

}  // namespace tutti::test
