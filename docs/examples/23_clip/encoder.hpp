#pragma once

#include <cmath>
#include <cstddef>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace clip_example {

/// Roughly normal, and the same with every standard library.
inline double normal(std::mt19937& bits) {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += static_cast<double>(bits()) / 4294967296;
  return sum;
}

/// A linear map whose results have length 1, and its gradient.
class Encoder {
 public:
  Encoder(std::size_t inputs, std::size_t dims, unsigned seed) : inputs_(inputs), dims_(dims) {
    std::mt19937 bits(seed);
    for (std::size_t i = 0; i < inputs * dims; ++i) weights_.push_back(0.2 * normal(bits));
  }
  const std::vector<double>& weights() const { return weights_; }
  void update(std::span<const double> gradient, double rate) {
    for (std::size_t i = 0; i < weights_.size(); ++i) weights_[i] -= rate * gradient[i];
  }

  /// x [rows, inputs] -> [rows, dims]
  std::vector<double> features(const std::vector<double>& x) const {
    std::vector<double> all;
    for (std::size_t row = 0; row < x.size() / inputs_; ++row) {
      const auto feature = of_row(x, row).first;
      all.insert(all.end(), feature.begin(), feature.end());
    }
    return all;
  }
  /// Appends to `out` the gradient by the weights: the sum over rows [first, first + rows) of x.
  /// `gradient` is that by the features of all rows.
  void backward(const std::vector<double>& x, std::span<const double> gradient, std::size_t first,
                std::size_t rows, std::vector<double>& out) const {
    std::vector<double> sum(weights_.size());
    for (std::size_t row = first; row < first + rows; ++row) {
      const auto [feature, length] = of_row(x, row);
      double along = 0;  // The part of the gradient that changes only the length.
      for (std::size_t d = 0; d < dims_; ++d) along += feature[d] * gradient[row * dims_ + d];
      for (std::size_t d = 0; d < dims_; ++d) {
        const double slope = (gradient[row * dims_ + d] - feature[d] * along) / length;
        for (std::size_t i = 0; i < inputs_; ++i)
          sum[d * inputs_ + i] += slope * x[row * inputs_ + i];
      }
    }
    out.insert(out.end(), sum.begin(), sum.end());
  }

 private:
  /// The feature of one row, and its length before it was divided by that.
  std::pair<std::vector<double>, double> of_row(const std::vector<double>& x,
                                                std::size_t row) const {
    std::vector<double> feature(dims_);
    double squares = 0;
    for (std::size_t d = 0; d < dims_; ++d) {
      for (std::size_t i = 0; i < inputs_; ++i)
        feature[d] += weights_[d * inputs_ + i] * x[row * inputs_ + i];
      squares += feature[d] * feature[d];
    }
    const double length = std::sqrt(squares);
    for (double& f : feature) f /= length;
    return {feature, length};
  }

  std::size_t inputs_, dims_;
  std::vector<double> weights_;  // [dims, inputs]
};

}  // namespace clip_example
