// Trains an encoder with the loss of Barlow Twins on 1, 2 and 4 ranks with uneven rows. The loss is
// a function of moments of the batch, so one differentiable all_reduce makes it that of all rows.

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

using Numbers = std::vector<double>;

constexpr std::size_t rows = 22;
constexpr std::size_t inputs = 6;
constexpr std::size_t features = 3;
constexpr double off_diagonal = 0.05;
constexpr double learning_rate = 0.5;
constexpr int steps = 8;

struct Loss {
  double value;
  Numbers by_a, by_b;  // Its gradient by the embeddings, summed over the copies of all ranks.
};

/// Zbontar, Jing, Misra, LeCun, Deny: "Barlow Twins", ICML 2021: `a` and `b` are this rank's
/// embeddings of two views, [n, features]. The cross-correlation c is over the rows of all ranks:
/// loss = sum over i of (1 - c_ii)^2 + off_diagonal * sum over i != j of c_ij^2.
Loss barlow_twins(tutti::ProcessGroup& group, const Numbers& a, const Numbers& b) {
  constexpr std::size_t d = features;
  // Of each pair of features the sums of a_i, b_j, a_i^2, b_j^2 and a_i b_j; then the row count.
  constexpr std::size_t sum_b = d, sum_aa = 2 * d, sum_bb = 3 * d, sum_ab = 4 * d,
                        count = sum_ab + d * d;
  Numbers own(count + 1);
  for (std::size_t row = 0; row < a.size(); row += d, ++own[count])
    for (std::size_t i = 0; i < d; ++i) {
      own[i] += a[row + i];
      own[sum_b + i] += b[row + i];
      own[sum_aa + i] += a[row + i] * a[row + i];
      own[sum_bb + i] += b[row + i] * b[row + i];
      for (std::size_t j = 0; j < d; ++j) own[sum_ab + i * d + j] += a[row + i] * b[row + j];
    }
  const auto moments = tutti::autograd::all_reduce(group, own);

  // Every rank computes the loss of the global moments, and its gradient by them.
  Numbers m(moments.value.values<double>().begin(), moments.value.values<double>().end());
  for (std::size_t k = 0; k < count; ++k) m[k] /= m[count];  // Means.
  Numbers by(count + 1);
  double loss = 0;
  for (std::size_t i = 0; i < d; ++i)
    for (std::size_t j = 0; j < d; ++j) {
      const double var_a = m[sum_aa + i] - m[i] * m[i];
      const double var_b = m[sum_bb + j] - m[sum_b + j] * m[sum_b + j];
      const double root = std::sqrt(var_a * var_b);
      const double c = (m[sum_ab + i * d + j] - m[i] * m[sum_b + j]) / root;
      loss += i == j ? (1 - c) * (1 - c) : off_diagonal * c * c;
      const double by_c = i == j ? -2 * (1 - c) : 2 * off_diagonal * c;
      const double by_var_a = -by_c * c / (2 * var_a);
      const double by_var_b = -by_c * c / (2 * var_b);
      by[sum_ab + i * d + j] += by_c / root;
      by[sum_aa + i] += by_var_a;
      by[sum_bb + j] += by_var_b;
      by[i] -= by_c / root * m[sum_b + j] + 2 * by_var_a * m[i];
      by[sum_b + j] -= by_c / root * m[i] + 2 * by_var_b * m[sum_b + j];
    }
  for (double& value : by) value /= m[count];

  const auto by_own = moments.back(group, by);
  const auto g = by_own.value.values<double>();
  Loss result{loss, Numbers(a.size()), Numbers(b.size())};
  for (std::size_t row = 0; row < a.size(); row += d)
    for (std::size_t i = 0; i < d; ++i) {
      result.by_a[row + i] += g[i] + 2 * g[sum_aa + i] * a[row + i];
      result.by_b[row + i] += g[sum_b + i] + 2 * g[sum_bb + i] * b[row + i];
      for (std::size_t j = 0; j < d; ++j) {
        result.by_a[row + i] += g[sum_ab + i * d + j] * b[row + j];
        result.by_b[row + j] += g[sum_ab + i * d + j] * a[row + i];
      }
    }
  return result;
}

/// A view of row `row`: its content, and noise that differs between views.
double input(std::size_t row, std::size_t k, double view) {
  const auto r = static_cast<double>(row);
  const auto x = static_cast<double>(k);
  return std::sin(r * 1.3 + x * x) + 0.4 * std::sin(r * 7.7 + x * 3.1 + view);
}

/// Trains weights [inputs, features] on the rows [first, last); returns the loss of each step.
Numbers train(tutti::ProcessGroup& group, std::size_t first, std::size_t last) {
  Numbers weights(inputs * features);
  for (std::size_t k = 0; k < weights.size(); ++k)
    weights[k] = std::cos(static_cast<double>(3 * k));
  const auto embed = [&](double view) {
    Numbers z((last - first) * features);
    for (std::size_t n = 0; n < z.size(); ++n)
      for (std::size_t k = 0; k < inputs; ++k)
        z[n] += input(first + n / features, k, view) * weights[k * features + n % features];
    return z;
  };
  Numbers losses;
  for (int step = 0; step < steps; ++step) {
    const Loss loss = barlow_twins(group, embed(0), embed(2));
    losses.push_back(loss.value);
    Numbers gradient(weights.size());
    for (std::size_t n = 0; n < loss.by_a.size(); ++n)
      for (std::size_t k = 0; k < inputs; ++k)
        gradient[k * features + n % features] += input(first + n / features, k, 0) * loss.by_a[n] +
                                                 input(first + n / features, k, 2) * loss.by_b[n];
    group.all_reduce(gradient, tutti::ReduceOp::avg);  // As a data-parallel wrapper does.
    for (std::size_t k = 0; k < weights.size(); ++k) weights[k] -= learning_rate * gradient[k];
  }
  return losses;
}

Numbers train_on(std::size_t size) {
  const auto store = tutti::make_memory_store();
  Numbers losses;
  std::vector<std::jthread> ranks;
  for (std::size_t r = 0; r < size; ++r)
    ranks.emplace_back([&, r] {
      auto group = tutti::ProcessGroup::create({.backend = "local",
                                                .store = store,
                                                .rank = static_cast<int>(r),
                                                .size = static_cast<int>(size)});
      // On four ranks: 1, 4, 7 and 10 rows.
      const auto begin = [size](std::size_t rank) { return rows * rank * rank / (size * size); };
      const Numbers mine = train(group, begin(r), begin(r + 1));
      if (r == 0) losses = mine;
    });
  ranks.clear();  // Joins the threads.
  return losses;
}

}  // namespace

int main() {
  const Numbers one = train_on(1);
  const Numbers two = train_on(2);
  const Numbers four = train_on(4);
  std::printf("step  1 rank         2 ranks        4 ranks\n");
  for (std::size_t step = 0; step < one.size(); ++step)
    std::printf("%4zu  %.10f  %.10f  %.10f\n", step, one[step], two[step], four[step]);
}
