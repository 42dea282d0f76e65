#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numbers>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/training.hpp>

// A network with its own backward, and the data on which the examples of ddp train it.

namespace mlp {

struct Point {
  double x;
  double y;
  double label;  // 0 or 1: the spiral on which the point lies.
};

inline constexpr std::size_t rows_of_data = 400;
inline constexpr std::size_t rows_of_batch = 50;  // Of all ranks together.

/// Returns a number in [0, 1), the same on every platform.
inline double uniform(std::mt19937_64& random) {
  return static_cast<double>(random() >> 11) * 0x1p-53;
}

inline std::vector<Point> make_spirals() {
  std::mt19937_64 random(42);
  std::vector<Point> points;
  for (std::size_t i = 0; i < rows_of_data; ++i) {
    const double label = static_cast<double>(i % 2);
    const double radius = 0.1 + 0.9 * uniform(random);
    const double angle = std::numbers::pi * (1.5 * radius + label) + 0.3 * (uniform(random) - 0.5);
    points.push_back({radius * std::cos(angle), radius * std::sin(angle), label});
  }
  return points;
}

/// Returns a rank's part of a step's batch: 50 rows are split into 13, 13, 12 and 12.
inline std::vector<Point> part_of_batch(const std::vector<Point>& data, int step,
                                        const tutti::ProcessGroup& group) {
  const auto first = static_cast<std::size_t>(step) * rows_of_batch % rows_of_data;
  const auto ranks = static_cast<std::size_t>(group.size());
  std::vector<Point> mine;
  for (auto r = static_cast<std::size_t>(group.rank()); r < rows_of_batch; r += ranks)
    mine.push_back(data[first + r]);
  return mine;
}

/// Layers with tanh, then one output with a sigmoid and cross-entropy. Layer i has the parameters
/// 2 i, weights [outputs, inputs], and 2 i + 1, biases [outputs].
template <typename T>
class Network {
 public:
  /// @param units  number of inputs, of units of each hidden layer, and 1.
  Network(std::vector<std::size_t> units, int seed) : units_(std::move(units)) {
    std::mt19937_64 random(static_cast<std::uint64_t>(seed));
    for (std::size_t layer = 0; layer + 1 < units_.size(); ++layer)
      for (const std::size_t inputs : {units_[layer], std::size_t{1}}) {
        std::vector<T>& values = values_.emplace_back(inputs * units_[layer + 1]);
        const double range = std::sqrt(3 / static_cast<double>(units_[layer]));
        for (T& v : values) v = static_cast<T>(range * (2 * uniform(random) - 1));
        gradients_.emplace_back(values.size());
      }
  }

  std::size_t parameter_count() const { return values_.size(); }
  tutti::TensorView value(std::size_t id) { return view_of(values_, id); }
  tutti::TensorView gradient(std::size_t id) { return view_of(gradients_, id); }
  std::vector<tutti::ddp::Parameter> parameters() {
    std::vector<tutti::ddp::Parameter> all;
    for (std::size_t id = 0; id < values_.size(); ++id) {
      std::string name(1, id % 2 == 0 ? 'w' : 'b');
      all.push_back({name += std::to_string(id / 2 + 1), value(id)});
    }
    return all;
  }

  /// Returns the mean loss of the rows.
  double loss(std::span<const Point> rows) const {
    return loss_of(forward(rows).back(), rows, 1 / static_cast<double>(rows.size()));
  }

  /// Computes the gradients of `weight` times the sum of the rows' losses, and returns this sum.
  /// Calls `ready` for a parameter as soon as its gradient is complete, for the last layer first.
  double backward(std::span<const Point> rows, double weight,
                  const std::function<void(std::size_t id)>& ready) {
    const auto h = forward(rows);
    std::vector<T> d(rows.size());  // The gradient of a layer's sums: [rows, outputs].
    for (std::size_t r = 0; r < rows.size(); ++r)
      d[r] = static_cast<T>(
          weight * (1 / (1 + std::exp(-static_cast<double>(h.back()[r]))) - rows[r].label));
    for (std::size_t layer = units_.size() - 1; layer-- > 0;) {
      const std::size_t inputs = units_[layer];
      const std::size_t outputs = units_[layer + 1];
      const std::vector<T>& w = values_[2 * layer];
      std::vector<T>& dw = gradients_[2 * layer];
      std::vector<T>& db = gradients_[2 * layer + 1];
      std::ranges::fill(dw, T(0));
      std::ranges::fill(db, T(0));
      std::vector<T> dx(rows.size() * inputs);
      for (std::size_t r = 0; r < rows.size(); ++r)
        for (std::size_t j = 0; j < outputs; ++j) {
          const T dj = d[r * outputs + j];
          db[j] += dj;
          for (std::size_t i = 0; i < inputs; ++i) {
            dw[j * inputs + i] += dj * h[layer][r * inputs + i];
            dx[r * inputs + i] += dj * w[j * inputs + i];
          }
        }
      ready(2 * layer + 1);
      ready(2 * layer);  // The reducer can send these while the layer before is computed.
      for (std::size_t i = 0; i < dx.size(); ++i) dx[i] *= 1 - h[layer][i] * h[layer][i];
      d = std::move(dx);
    }
    return loss_of(h.back(), rows, weight);
  }

  void update(double rate) {
    for (std::size_t id = 0; id < values_.size(); ++id)
      for (std::size_t i = 0; i < values_[id].size(); ++i)
        values_[id][i] -= static_cast<T>(rate) * gradients_[id][i];
  }

 private:
  tutti::TensorView view_of(std::vector<std::vector<T>>& arrays, std::size_t id) {
    const auto outputs = static_cast<std::int64_t>(units_[id / 2 + 1]);
    const auto inputs = static_cast<std::int64_t>(units_[id / 2]);
    using tutti::Shape;
    return tutti::view(arrays[id], id % 2 == 0 ? Shape({outputs, inputs}) : Shape({outputs}));
  }

  /// Returns the inputs, the units of each hidden layer and the output, each [rows, units].
  std::vector<std::vector<T>> forward(std::span<const Point> rows) const {
    std::vector<std::vector<T>> h(1);
    for (const Point& p : rows)
      for (const double v : {p.x, p.y}) h[0].push_back(static_cast<T>(v));
    for (std::size_t layer = 0; layer + 1 < units_.size(); ++layer) {
      const std::size_t inputs = units_[layer];
      const std::size_t outputs = units_[layer + 1];
      std::vector<T> next(rows.size() * outputs);
      for (std::size_t r = 0; r < rows.size(); ++r)
        for (std::size_t j = 0; j < outputs; ++j) {
          T sum = values_[2 * layer + 1][j];
          for (std::size_t i = 0; i < inputs; ++i)
            sum += values_[2 * layer][j * inputs + i] * h[layer][r * inputs + i];
          const bool last = layer + 2 == units_.size();
          next[r * outputs + j] = last ? sum : std::tanh(sum);
        }
      h.push_back(std::move(next));
    }
    return h;
  }

  static double loss_of(const std::vector<T>& output, std::span<const Point> rows, double weight) {
    double loss = 0;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const auto z = static_cast<double>(output[r]);
      loss += std::log1p(std::exp(-std::abs(z))) + std::max(z, 0.0) - z * rows[r].label;
    }
    return weight * loss;
  }

  std::vector<std::size_t> units_;
  std::vector<std::vector<T>> values_;
  std::vector<std::vector<T>> gradients_;
};

}  // namespace mlp
