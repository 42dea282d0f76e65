// Trains a model that ranks the few ill patients first. One rank and four ranks give the same
// curve.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include <tutti/losses/smooth_ap.hpp>
#include <tutti/training.hpp>

namespace {

// Four hospitals, in which 2 % of the patients are ill. Ill patients have higher readings, but the
// instruments of the hospitals have larger offsets. A blank sample measures the offset.
constexpr std::array<std::size_t, 4> patients{1000, 600, 300, 100};
constexpr std::array offset{0.0, 3.0, -2.0, 5.0};

using Pair = std::array<double, 2>;  // Weights of the reading and the blank.
struct Rows {
  std::vector<Pair> x;
  std::vector<std::int64_t> ill;
};

/// Returns the patients of these hospitals, the same in every run.
Rows rows_of(std::size_t begin, std::size_t end) {
  Rows rows;
  for (std::size_t h = begin; h < end; ++h) {
    std::mt19937 bits(static_cast<unsigned>(h));
    const auto noise = [&] {  // Roughly normal, and the same with every standard library.
      double sum = -6;
      for (int i = 0; i < 12; ++i) sum += static_cast<double>(bits()) / 4294967296;
      return sum;
    };
    for (std::size_t i = 0; i < patients[h]; ++i) {
      const bool ill = i % 50 == 7;
      const double reading = offset[h] + noise() + (ill ? 3 : 0);
      rows.x.push_back({reading, offset[h] + 0.2 * noise()});
      rows.ill.push_back(ill);
    }
  }
  return rows;
}

std::vector<double> scores_of(const Rows& rows, const Pair& weight) {
  std::vector<double> scores;
  for (const Pair& x : rows.x) scores.push_back(x[0] * weight[0] + x[1] * weight[1]);
  return scores;
}

/// Returns the exact average precision: the mean over ill patients of the precision at their rank.
double average_precision(const Rows& rows, const Pair& weight) {
  const std::vector<double> scores = scores_of(rows, weight);
  std::vector<std::pair<double, bool>> order;
  for (std::size_t i = 0; i < scores.size(); ++i) order.emplace_back(scores[i], rows.ill[i] != 0);
  std::ranges::sort(order, std::greater());
  double found = 0, sum = 0;
  for (std::size_t i = 0; i < order.size(); ++i)
    if (order[i].second) sum += ++found / static_cast<double>(i + 1);
  return sum / found;
}

struct Step {
  double loss;
  Pair weight;
};
using Curve = std::vector<Step>;

/// Runs one rank's training, with the loss over all ranks' rows or over its own rows.
Curve train(tutti::ProcessGroup& group, const Rows& rows, bool global) {
  tutti::losses::SmoothAp smooth_ap({.temperature = 0.1});
  Pair weight{0.5, 0.0};
  Curve curve;
  for (int step = 0; step <= 50; ++step) {
    const std::vector<double> scores = scores_of(rows, weight);
    const tutti::losses::Batch batch{scores, rows.ill};
    const auto result = global ? smooth_ap(group, batch) : smooth_ap(batch);
    const auto by_score = result.grad.values<double>();
    std::array<double, 3> mean{0, 0, result.loss};
    for (std::size_t i = 0; i < scores.size(); ++i)
      for (std::size_t f = 0; f < 2; ++f) mean[f] += by_score[i] * rows.x[i][f];
    // A data-parallel trainer averages, too. The default GradScale::sum expects this average.
    group.all_reduce(mean, tutti::ReduceOp::avg);
    curve.push_back({mean[2], weight});
    for (std::size_t f = 0; f < 2; ++f) weight[f] -= 0.1 * mean[f];
  }
  return curve;
}

/// Returns the curve of rank 0 if `size` ranks share the hospitals.
Curve train_on(std::size_t size, bool global) {
  Curve curve;
  const auto store = tutti::make_memory_store();
  std::vector<std::jthread> ranks;
  for (std::size_t r = 0; r < size; ++r)
    ranks.emplace_back([=, &curve] {
      auto group = tutti::ProcessGroup::create({.backend = "local",
                                                .store = store,
                                                .rank = static_cast<int>(r),
                                                .size = static_cast<int>(size)});
      const Rows rows = rows_of(patients.size() * r / size, patients.size() * (r + 1) / size);
      Curve own = train(group, rows, global);
      if (r == 0) curve = std::move(own);
    });
  ranks.clear();  // Joins the threads.
  return curve;
}

}  // namespace

int main() {
  const Curve one = train_on(1, true), four = train_on(4, true), apart = train_on(4, false);
  const Rows all = rows_of(0, patients.size());
  std::printf("step    one rank          four ranks        four, each its own loss\n");
  for (std::size_t i = 0; i < one.size(); i += 10) {
    std::printf("%4zu", i);
    for (const auto& [loss, weight] : {one[i], four[i], apart[i]})
      std::printf("    %.3f AP %.3f", loss, average_precision(all, weight));
    std::printf("\n");
  }
  double largest = 0;
  for (const Curve& other : {four, train_on(7, true)})
    for (std::size_t i = 0; i < one.size(); ++i)
      for (const double d : {one[i].loss - other[i].loss, one[i].weight[0] - other[i].weight[0],
                             one[i].weight[1] - other[i].weight[1]})
        largest = std::max(largest, std::abs(d));
  std::printf("\n1, 4 and 7 ranks differ by %s\n",
              largest < 1e-12 ? "less than 1e-12" : std::to_string(largest).c_str());
}
