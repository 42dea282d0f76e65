#include "conformance/autograd/gradient_model.hpp"

#include <cmath>

#include "support/inputs.hpp"

namespace tutti::test {

namespace {

Matrix transposed(const Matrix& a) {
  Matrix out(a.columns, a.rows);
  for (std::int64_t i = 0; i < a.rows; ++i)
    for (std::int64_t j = 0; j < a.columns; ++j) out(j, i) = a(i, j);
  return out;
}

void fill(Matrix& matrix, std::uint64_t salt) {
  for (std::size_t i = 0; i < matrix.data.size(); ++i)
    matrix.data[i] = static_cast<double>(static_cast<std::int64_t>(mix(salt, i))) * 0x1p-63;
}

/// The derivative of row i's loss by each z_i . z_j.
Matrix by_products(const Matrix& z) {
  Matrix by = times_transposed(z, z);
  for (std::int64_t i = 0; i < z.rows; ++i) {
    double sum = 0;
    for (std::int64_t j = 0; j < z.rows; ++j) sum += by(i, j) = std::exp(by(i, j));
    for (std::int64_t j = 0; j < z.rows; ++j) by(i, j) /= sum;
    by(i, (i + 1) % z.rows) -= 1;
  }
  return by;
}

}  // namespace

Matrix times(const Matrix& a, const Matrix& b) {
  Matrix out(a.rows, b.columns);
  for (std::int64_t i = 0; i < a.rows; ++i)
    for (std::int64_t j = 0; j < b.columns; ++j)
      for (std::int64_t k = 0; k < a.columns; ++k) out(i, j) += a(i, k) * b(k, j);
  return out;
}

Matrix transposed_times(const Matrix& a, const Matrix& b) {
  return times(transposed(a), b);
}

Matrix times_transposed(const Matrix& a, const Matrix& b) {
  return times(a, transposed(b));
}

Matrix rows_of(const Matrix& whole, std::int64_t first, std::int64_t count) {
  Matrix part(count, whole.columns);
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t j = 0; j < whole.columns; ++j) part(i, j) = whole(first + i, j);
  return part;
}

Model::Model() {
  fill(in, 1);
  fill(out, 2);
}

Matrix Model::forward(const Matrix& x) const {
  Matrix hidden = times(x, in);
  for (double& h : hidden.data) h = std::tanh(h);
  return times(hidden, out);
}

std::vector<double> Model::backward(const Matrix& x, const Matrix& by_z) const {
  Matrix hidden = times(x, in);
  for (double& h : hidden.data) h = std::tanh(h);
  Matrix by_hidden = times_transposed(by_z, out);
  for (std::size_t i = 0; i < hidden.data.size(); ++i)
    by_hidden.data[i] *= 1 - hidden.data[i] * hidden.data[i];
  std::vector<double> all = transposed_times(x, by_hidden).data;
  const Matrix by_out = transposed_times(hidden, by_z);
  all.insert(all.end(), by_out.data.begin(), by_out.data.end());
  return all;
}

std::vector<double*> Model::parameters() {
  std::vector<double*> all;
  for (Matrix* matrix : {&in, &out})
    for (double& number : matrix->data) all.push_back(&number);
  return all;
}

double pair_loss(const Matrix& z, const std::vector<double>& weights) {
  const Matrix products = times_transposed(z, z);
  double loss = 0;
  for (std::int64_t i = 0; i < z.rows; ++i) {
    double sum = 0;
    for (std::int64_t j = 0; j < z.rows; ++j) sum += std::exp(products(i, j));
    loss += weights[static_cast<std::size_t>(i)] * (std::log(sum) - products(i, (i + 1) % z.rows));
  }
  return loss;
}

Matrix pair_loss_gradient(const Matrix& z, const std::vector<double>& weights) {
  Matrix by = by_products(z);
  for (std::int64_t i = 0; i < z.rows; ++i)
    for (std::int64_t j = 0; j < z.rows; ++j) by(i, j) *= weights[static_cast<std::size_t>(i)];
  // Row i of z is the left factor of its own products and the right factor of every row's.
  Matrix gradient = times(by, z);
  const Matrix right = transposed_times(by, z);
  for (std::size_t i = 0; i < gradient.data.size(); ++i) gradient.data[i] += right.data[i];
  return gradient;
}

}  // namespace tutti::test
