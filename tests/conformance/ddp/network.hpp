#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include <tutti/ddp/gradient_reducer.hpp>

#include "conformance/cells.hpp"

// A network with its own backward, small enough that one process can train it as the reference.

namespace tutti::test {

/// 6 inputs, 5 hidden units with tanh, 2 outputs, squared error. Parameters: w1 [5, 6], b1 [5],
/// w2 [2, 5], b2 [2].
template <typename T>
class Network {
 public:
  static constexpr std::size_t inputs = 6;
  static constexpr std::size_t hidden = 5;
  static constexpr std::size_t outputs = 2;

  /// Called when the gradient of a parameter is complete, last layer first.
  using OnGradient = std::function<void(std::size_t id)>;

  explicit Network(unsigned seed) : values(4), gradients(4) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal(0, 0.4);
    for (std::size_t id = 0; id < 4; ++id) {
      values[id].resize(static_cast<std::size_t>(shape(id).numel()));
      for (T& v : values[id]) v = static_cast<T>(normal(random));
      gradients[id].assign(values[id].size(), T(0));
    }
  }

  static Shape shape(std::size_t id) {
    const auto i = static_cast<std::int64_t>(inputs);
    const auto h = static_cast<std::int64_t>(hidden);
    const auto o = static_cast<std::int64_t>(outputs);
    return id == 0 ? Shape{h, i} : id == 1 ? Shape{h} : id == 2 ? Shape{o, h} : Shape{o};
  }

  struct Row {
    std::vector<T> x;
    std::vector<T> wanted;  ///< Outputs.
  };
  /// Draws rows [first, first + count) of a data set: the same for the same seed.
  static std::vector<Row> draw_rows(unsigned seed, std::int64_t first, std::int64_t count) {
    std::vector<Row> rows;
    for (std::int64_t r = first; r < first + count; ++r) {
      std::mt19937_64 random(seed * 1000 + static_cast<unsigned>(r));
      std::normal_distribution<double> normal;
      std::vector<T> x(inputs);
      for (T& v : x) v = static_cast<T>(normal(random));
      const std::vector<T> wanted{x[0] - x[1], x[2] * x[3]};
      rows.push_back({std::move(x), wanted});
    }
    return rows;
  }

  /// Adds `weight` times the gradients of the sum of squared errors over the rows. Returns the sum.
  double backward(unsigned seed, std::int64_t first, std::int64_t count, double weight,
                  const OnGradient& on_gradient = {}) {
    return backward(draw_rows(seed, first, count), weight, on_gradient);
  }
  double backward(const std::vector<Row>& rows, double weight, const OnGradient& on_gradient = {}) {
    double loss = 0;
    std::vector<std::vector<T>> d1;
    for (const auto& [x, wanted] : rows) {
      std::vector<T> h(hidden);
      for (std::size_t j = 0; j < hidden; ++j) {
        T sum = values[1][j];
        for (std::size_t i = 0; i < inputs; ++i) sum += values[0][j * inputs + i] * x[i];
        h[j] = std::tanh(sum);
      }
      std::vector<T> dy(outputs);
      std::vector<T> dh(hidden, T(0));
      for (std::size_t k = 0; k < outputs; ++k) {
        T y = values[3][k];
        for (std::size_t j = 0; j < hidden; ++j) y += values[2][k * hidden + j] * h[j];
        const T error = y - wanted[k];
        loss += 0.5 * weight * static_cast<double>(error) * static_cast<double>(error);
        dy[k] = error * static_cast<T>(weight);
        for (std::size_t j = 0; j < hidden; ++j) {
          dh[j] += dy[k] * values[2][k * hidden + j];
          gradients[2][k * hidden + j] += dy[k] * h[j];
        }
        gradients[3][k] += dy[k];
      }
      for (std::size_t j = 0; j < hidden; ++j) dh[j] *= T(1) - h[j] * h[j];
      d1.push_back(dh);
    }
    if (on_gradient) on_gradient(3);
    if (on_gradient) on_gradient(2);
    for (std::size_t r = 0; r < d1.size(); ++r)
      for (std::size_t j = 0; j < hidden; ++j) {
        gradients[1][j] += d1[r][j];
        for (std::size_t i = 0; i < inputs; ++i)
          gradients[0][j * inputs + i] += d1[r][j] * rows[r].x[i];
      }
    if (on_gradient) on_gradient(1);
    if (on_gradient) on_gradient(0);
    return loss;
  }

  void zero_gradients() {
    for (auto& gradient : gradients) gradient.assign(gradient.size(), T(0));
  }
  void update(double rate) {
    for (std::size_t id = 0; id < 4; ++id)
      for (std::size_t i = 0; i < values[id].size(); ++i)
        values[id][i] -= static_cast<T>(rate) * gradients[id][i];
  }

  std::vector<std::vector<T>> values;
  std::vector<std::vector<T>> gradients;
};

/// Returns the largest difference between the parameters of two networks.
template <typename T>
double distance(const Network<T>& a, const Network<T>& b) {
  double most = 0;
  for (std::size_t id = 0; id < 4; ++id)
    for (std::size_t i = 0; i < a.values[id].size(); ++i) {
      const double d = std::abs(static_cast<double>(a.values[id][i] - b.values[id][i]));
      most = std::isnan(d) ? INFINITY : std::max(most, d);
    }
  return most;
}

inline constexpr std::int64_t rows_of_batch = 13;
inline constexpr double learning_rate = 0.3;

/// Returns the network that one process trains with the whole batches.
template <typename T>
Network<T> trained_alone(unsigned seed, unsigned steps) {
  Network<T> network(seed);
  for (unsigned step = 0; step < steps; ++step) {
    network.zero_gradients();
    network.backward(step, 0, rows_of_batch, 1.0 / rows_of_batch);
    network.update(learning_rate);
  }
  return network;
}

/// Returns the rows of each rank: 13 rows in all, uneven. In every third step, the last of several
/// ranks has none.
inline Layout uneven_split(int size, unsigned step) {
  Layout rows(index(size), 0);
  for (std::int64_t r = 0; r < rows_of_batch; ++r)
    ++rows[(static_cast<std::size_t>(r) * static_cast<std::size_t>(r) + step) % rows.size()];
  if (size > 1 && step % 3 == 2) {
    rows.front() += rows.back();
    rows.back() = 0;
  }
  return rows;
}

/// Copies of a network's arrays in the memory that the group's calls use.
template <typename T>
class Staged {
 public:
  Staged(ProcessGroup& group, Network<T>& network) : group_(group), network_(network) {
    for (std::size_t id = 0; id < 4; ++id) {
      values_.emplace_back(group, to_array(network.values[id], id));
      gradients_.emplace_back(group, to_array(network.gradients[id], id));
    }
  }
  std::vector<ddp::Parameter> parameters() const {
    return {{"w1", values_[0]}, {"b1", values_[1]}, {"w2", values_[2]}, {"b2", values_[3]}};
  }
  /// Copies the parameters from the reducer's arrays to the network.
  void fetch_values() {
    for (std::size_t id = 0; id < 4; ++id) from_array(values_[id].read(), network_.values[id]);
  }
  void mark(ddp::GradientReducer& reducer, std::size_t id) {
    gradients_[id].write(to_array(network_.gradients[id], id));
    reducer.mark_ready(id, gradients_[id]);
  }
  void fetch_gradients() {
    for (std::size_t id = 0; id < 4; ++id)
      from_array(gradients_[id].read(), network_.gradients[id]);
  }

  /// Makes one step of this rank with its rows, without the update. The result is the gradients of
  /// the global mean.
  void step(ddp::GradientReducer& reducer, unsigned number) {
    const auto rows = uneven_split(group_.size(), number);
    network_.zero_gradients();
    network_.backward(number, offset(rows, group_.rank()), rows[index(group_.rank())], weight(),
                      [&](std::size_t id) { mark(reducer, id); });
    reducer.finish();
    fetch_gradients();
  }
  /// The weight of a row's loss. The reducer divides by W.
  double weight() const { return static_cast<double>(group_.size()) / rows_of_batch; }

 private:
  static Array to_array(const std::vector<T>& from, std::size_t id) {
    Array array(dtype_of<T>, Network<T>::shape(id));
    for (std::size_t i = 0; i < from.size(); ++i)
      array.put<T>(static_cast<std::int64_t>(i), from[i]);
    return array;
  }
  static void from_array(const Array& array, std::vector<T>& to) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = array.get<T>(static_cast<std::int64_t>(i));
  }

  ProcessGroup& group_;
  Network<T>& network_;
  std::vector<Buffer> values_;
  std::vector<Buffer> gradients_;
};

/// Options for buckets of about one parameter each.
inline ddp::ReducerOptions small_buckets() {
  return {.first_bucket_cap = 64, .bucket_cap = 128};
}

}  // namespace tutti::test
