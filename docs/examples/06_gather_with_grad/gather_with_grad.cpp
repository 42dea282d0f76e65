// Compares the gradient conventions of a gather in a contrastive loss over three ranks.

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <thread>
#include <vector>

#include <tutti/autograd.hpp>
#include <tutti/tutti.hpp>

namespace {

using tutti::GradScale;
using Pair = std::array<double, 2>;

// Five rows of two features; rank 0 has two rows, rank 1 none, rank 2 three. The model is z =
// weight * row, summed over the features.
constexpr std::array<Pair, 5> data{{{0.5, 1.0}, {-1.0, 0.3}, {0.8, -0.4}, {1.2, 0.6}, {-0.2, 0.9}}};
constexpr std::array<std::int64_t, 4> begins{0, 2, 2, 5};
constexpr Pair weight{0.7, -0.4};

std::vector<double> embed(std::span<const Pair> rows) {
  std::vector<double> z;
  for (const Pair& row : rows) z.push_back(row[0] * weight[0] + row[1] * weight[1]);
  return z;
}

/// Returns the gradient of the weights, from the gradient of the embeddings.
Pair by_weights(std::span<const Pair> rows, std::span<const double> by_z) {
  Pair sum{0, 0};
  for (std::size_t i = 0; i < rows.size(); ++i)
    for (std::size_t f = 0; f < 2; ++f) sum[f] += rows[i][f] * by_z[i];
  return sum;
}

struct Gradients {
  std::vector<double> queries, keys;
};
/// Returns the gradient of scale * sum over queries i of (log sum_j exp(q_i k_j) - q_i k_i). The
/// key of query i is key first + i.
Gradients contrast(std::span<const double> queries, std::size_t first, std::span<const double> keys,
                   double scale) {
  Gradients g{std::vector<double>(queries.size()), std::vector<double>(keys.size())};
  for (std::size_t i = 0; i < queries.size(); ++i) {
    double total = 0;
    for (const double key : keys) total += std::exp(queries[i] * key);
    for (std::size_t j = 0; j < keys.size(); ++j) {
      const double p = std::exp(queries[i] * keys[j]) / total - (j == first + i ? 1 : 0);
      g.queries[i] += scale * p * keys[j];
      g.keys[j] += scale * p * queries[i];
    }
  }
  return g;
}

std::vector<double> plus(std::span<const double> a, std::span<const double> b) {
  std::vector<double> sum(a.begin(), a.end());
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += b[i];
  return sum;
}

Pair one_process() {
  const std::vector<double> z = embed(data);
  const Gradients g = contrast(z, 0, z, 1.0 / static_cast<double>(z.size()));
  return by_weights(data, plus(g.queries, g.keys));
}

/// This rank's part of a step. With `whole`, the loss is over all rows and the same on every rank.
/// Otherwise it is over this rank's rows, weighted so that the mean over the ranks is the loss of
/// all rows.
Pair step(tutti::ProcessGroup& group, bool whole, GradScale convention) {
  const auto r = static_cast<std::size_t>(group.rank());
  const auto first = static_cast<std::size_t>(begins[r]);
  const auto rows = std::span(data).subspan(first, static_cast<std::size_t>(begins[r + 1]) - first);
  const std::vector<double> z = embed(rows);

  const auto gathered = tutti::autograd::all_gather_rows(group, z, convention);
  const auto keys = gathered.value.values<double>();
  const auto n = static_cast<double>(keys.size());
  Pair gradient;
  if (whole) {
    const Gradients g = contrast(keys, 0, keys, 1 / n);
    const std::vector<double> by_gathered = plus(g.queries, g.keys);
    const auto by_z = gathered.back(group, by_gathered);
    gradient = by_weights(rows, by_z.value.values<double>());
  } else {
    const Gradients g = contrast(z, first, keys, group.size() / n);
    const auto by_z = gathered.back(group, g.keys);
    gradient = by_weights(rows, plus(g.queries, by_z.value.values<double>()));
  }
  // A data-parallel wrapper averages over the ranks.
  group.all_reduce(gradient, tutti::ReduceOp::avg);
  return gradient;
}

void print(const char* what, const Pair& gradient, const Pair& right) {
  std::printf("%-42s %9.6f %9.6f   x %.3f, %.3f\n", what, gradient[0], gradient[1],
              gradient[0] / right[0], gradient[1] / right[1]);
}

void compare(tutti::ProcessGroup& group) {
  struct Case {
    const char* what;
    bool whole;
    GradScale convention;
  };
  constexpr std::array cases{
      Case{"own rows * W/N, sum", false, GradScale::sum},
      Case{"own rows * W/N, local_slice", false, GradScale::local_slice},
      Case{"own rows * W/N, mean", false, GradScale::mean},
      Case{"the whole loss on every rank, sum", true, GradScale::sum},
      Case{"the whole loss on every rank, local_slice", true, GradScale::local_slice},
      Case{"the whole loss on every rank, mean", true, GradScale::mean},
  };
  const Pair right = one_process();
  if (group.rank() == 0) print("one process with all rows", right, right);
  for (const Case& c : cases) {
    const Pair gradient = step(group, c.whole, c.convention);
    if (group.rank() == 0) print(c.what, gradient, right);
  }
}

}  // namespace

int main() {
  constexpr int size = 3;
  const auto store = tutti::make_memory_store();
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.emplace_back([=] {
      auto group = tutti::ProcessGroup::create(
          {.backend = "local", .store = store, .rank = rank, .size = size});
      compare(group);
    });
}
