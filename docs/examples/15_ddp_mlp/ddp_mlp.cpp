// Trains a small network on 1, 2 and 4 ranks with the same batches. The loss curves are the same.

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <numbers>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include <tutti/tutti.hpp>

namespace {

constexpr std::size_t rows_of_data = 400;
constexpr std::size_t rows_of_batch = 50;  // Of all ranks together.
constexpr std::size_t hidden = 16;
constexpr int steps = 300;
constexpr double rate = 0.5;

struct Point {
  double x;
  double y;
  double label;  // 0 or 1: the spiral on which the point lies.
};

std::vector<Point> make_spirals() {
  std::mt19937_64 random(42);  // Its numbers are the same everywhere.
  const auto uniform = [&] { return static_cast<double>(random() >> 11) * 0x1p-53; };
  std::vector<Point> points;
  for (std::size_t i = 0; i < rows_of_data; ++i) {
    const double label = static_cast<double>(i % 2);
    const double radius = 0.1 + 0.9 * uniform();
    const double angle = std::numbers::pi * (1.5 * radius + label) + 0.3 * (uniform() - 0.5);
    points.push_back({radius * std::cos(angle), radius * std::sin(angle), label});
  }
  return points;
}

/// A network of 2 inputs, 16 units with tanh, 1 output with a sigmoid, and cross-entropy.
struct Network {
  std::vector<double> w1 = std::vector<double>(hidden * 2);
  std::vector<double> b1 = std::vector<double>(hidden);
  std::vector<double> w2 = std::vector<double>(hidden);
  std::vector<double> b2 = std::vector<double>(1);

  std::array<std::vector<double>*, 4> all() { return {&w1, &b1, &w2, &b2}; }
};

Network make_network(unsigned seed) {
  std::mt19937_64 random(seed);
  Network network;
  for (auto* values : network.all())
    for (double& v : *values) v = static_cast<double>(random() >> 11) * 0x1p-52 - 1;
  return network;
}

/// Sets `d` to the gradient of `weight` times the sum of the rows' losses, and returns this sum.
/// Calls `ready` for a parameter as soon as its gradient is complete.
double backward(const Network& net, std::span<const Point> rows, double weight, Network& d,
                const std::function<void(std::size_t id)>& ready) {
  d = Network();
  double loss = 0;
  std::vector<std::array<double, hidden>> of_hidden;  // The gradient of the units, per row.
  for (const Point& p : rows) {
    std::array<double, hidden> h{};
    double z = net.b2[0];
    for (std::size_t j = 0; j < hidden; ++j) {
      h[j] = std::tanh(net.w1[2 * j] * p.x + net.w1[2 * j + 1] * p.y + net.b1[j]);
      z += net.w2[j] * h[j];
    }
    loss += weight * (std::log1p(std::exp(-std::abs(z))) + std::max(z, 0.0) - z * p.label);
    const double dz = weight * (1 / (1 + std::exp(-z)) - p.label);
    d.b2[0] += dz;
    auto& dh = of_hidden.emplace_back();
    for (std::size_t j = 0; j < hidden; ++j) {
      d.w2[j] += dz * h[j];
      dh[j] = dz * net.w2[j] * (1 - h[j] * h[j]);
    }
  }
  ready(3);
  ready(2);  // The reducer can send these while the first layer is computed.
  for (std::size_t r = 0; r < rows.size(); ++r)
    for (std::size_t j = 0; j < hidden; ++j) {
      d.b1[j] += of_hidden[r][j];
      d.w1[2 * j] += of_hidden[r][j] * rows[r].x;
      d.w1[2 * j + 1] += of_hidden[r][j] * rows[r].y;
    }
  ready(1);
  ready(0);
  return loss;
}

/// Returns the loss of each step, which is the same on all ranks.
std::vector<double> train(tutti::ProcessGroup& group, const std::vector<Point>& data) {
  Network network = make_network(static_cast<unsigned>(group.rank()));  // Rank 0's counts.
  Network gradients;
  const std::array<const char*, 4> names{"w1", "b1", "w2", "b2"};
  std::vector<tutti::ddp::Parameter> parameters;
  for (std::size_t id = 0; id < 4; ++id) parameters.push_back({names[id], *network.all()[id]});
  // Two buckets, so that communication overlaps with the backward. The losses below are parts of
  // the mean over the batch, so gradients are added: divisor 1.
  tutti::ddp::GradientReducer reducer(group, parameters, {.first_bucket_cap = 256, .divisor = 1});

  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    // This rank's part of the batch: 50 rows are split into 13, 13, 12 and 12.
    const auto first = static_cast<std::size_t>(step) * rows_of_batch % rows_of_data;
    const auto ranks = static_cast<std::size_t>(group.size());
    const auto rank = static_cast<std::size_t>(group.rank());
    std::vector<Point> mine;
    for (std::size_t r = rank; r < rows_of_batch; r += ranks) mine.push_back(data[first + r]);

    const double part =
        backward(network, mine, 1.0 / rows_of_batch, gradients,
                 [&](std::size_t id) { reducer.mark_ready(id, *gradients.all()[id]); });
    reducer.finish();
    for (std::size_t id = 0; id < 4; ++id)
      for (std::size_t i = 0; i < network.all()[id]->size(); ++i)
        (*network.all()[id])[i] -= rate * (*gradients.all()[id])[i];
    losses.push_back(tutti::sync_ddp(part, &group, "sum"));
  }
  return losses;
}

}  // namespace

int main() {
  const auto data = make_spirals();
  std::vector<std::vector<double>> curves;
  for (const int size : {1, 2, 4}) {
    const auto store = tutti::make_memory_store();
    std::vector<double> curve;
    {
      std::vector<std::jthread> ranks;
      for (int rank = 0; rank < size; ++rank)
        ranks.emplace_back([&, rank] {
          auto group = tutti::ProcessGroup::create(
              {.backend = "local", .store = store, .rank = rank, .size = size});
          auto losses = train(group, data);
          if (rank == 0) curve = std::move(losses);
        });
    }
    curves.push_back(curve);
  }
  std::printf("step     1 rank    2 ranks    4 ranks\n");
  for (std::size_t step = 0; step < steps; step = step == 0 ? 19 : step + 40)
    std::printf("%4zu %10.6f %10.6f %10.6f\n", step + 1, curves[0][step], curves[1][step],
                curves[2][step]);
  double most = 0;
  for (std::size_t step = 0; step < steps; ++step)
    for (const auto& curve : curves) most = std::max(most, std::abs(curve[step] - curves[0][step]));
  std::printf("the curves are %s\n", most < 1e-9 ? "equal" : "different");
}
