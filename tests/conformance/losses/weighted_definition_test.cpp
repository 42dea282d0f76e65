#include <algorithm>
#include <cmath>
#include <functional>

#include <tutti/losses/p_auc_at_budget.hpp>
#include <tutti/losses/recall_at_quantile.hpp>
#include <tutti/losses/smooth_ap.hpp>

#include "conformance/losses/loss_rows.hpp"
#include "conformance/losses/pool_calls.hpp"

// Weights of the rows in ranking losses against definitions computed in the slow way.

namespace tutti::test {
namespace {

using losses::Batch;
using losses::ClassStatus;
using losses::PoolOptions;

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

/// The quantile of torch.quantile, linear or `higher`.
double quantile_of(std::vector<double> all, double q, bool higher) {
  std::ranges::sort(all);
  const double at = q * static_cast<double>(all.size() - 1);
  const auto low = static_cast<std::size_t>(std::floor(at));
  const auto high = static_cast<std::size_t>(std::ceil(at));
  if (higher) return all[high];
  return all[low] + (at - std::floor(at)) * (all[high] - all[low]);
}

/// The rows of one class that are not ignored.
struct WeightedClass {
  struct Row {
    double score, fixed, weight;
    bool positive, iid;
  };
  std::vector<Row> rows;
  double mass = 0;

  /// `fixed`: the logits that thresholds depend on.
  WeightedClass(const PoolRows& all, const std::vector<double>& fixed, std::int64_t c) {
    for (std::size_t i = 0; i < all.targets.size(); ++i) {
      if (all.targets[i] == losses::default_ignore_index) continue;
      const auto at = i * static_cast<std::size_t>(all.classes) + static_cast<std::size_t>(c);
      rows.push_back({all.logits[at], fixed[at], all.weights->at(i),
                      all.targets[i] == (all.classes == 1 ? 1 : c), all.iid[i] != 0});
      if (rows.back().positive) mass += rows.back().weight;
    }
  }
  template <typename Take>
  std::vector<double> scores(const Take& take) const {
    std::vector<double> some;
    for (const auto& row : rows)
      if (take(row)) some.push_back(row.fixed);
    return some;
  }
  /// The weighted mean of `value` over the positives.
  template <typename Value>
  double mean(const Value& value) const {
    double sum = 0;
    for (const auto& row : rows)
      if (row.positive) sum += row.weight * value(row);
    return sum / mass;
  }
};

using SlowLoss = std::function<double(const WeightedClass&)>;

double slow_smooth_ap(const WeightedClass& of) {
  return 1 - of.mean([&](const auto& k) {
    double a = 1;
    double b = 1;
    for (const auto& j : of.rows) {
      if (&j == &k) continue;
      const double term = sigmoid((j.score - k.score) / 0.05);
      a += term;
      b += j.positive ? term : 0;
    }
    return b / a;
  });
}

double slow_recall(const WeightedClass& of) {
  const double theta = quantile_of(of.scores([](const auto&) { return true; }), 0.9, true);
  return 1 - of.mean([&](const auto& row) { return sigmoid((row.score - theta) / 0.2); });
}

double slow_trapezoid(const WeightedClass& of) {
  const auto reference = of.scores([](const auto& row) { return !row.positive && row.iid; });
  const auto t = [&](double f) { return quantile_of(reference, 1 - f, false); };
  const double tau = 0.1 * (t(0.25) - t(0.75));
  return 1 - of.mean([&](const auto& row) {
    const auto at = [&](double f) { return sigmoid((row.score - t(f)) / tau); };
    return (at(0.05) / 2 + at(0.05 + (0.6 - 0.05) / 2) + at(0.6) / 2) / 2;
  });
}

double slow_pairwise(const WeightedClass& of) {
  const auto reference = of.scores([](const auto& row) { return row.iid; });
  const double high = quantile_of(reference, 1 - 0.05, false);
  const double low = quantile_of(reference, 1 - 0.6, false);
  const double tau = 0.1 * (high - low);
  return 1 - of.mean([&](const auto& row) {
    double sum = 0;
    double count = 0;
    for (const auto& j : of.rows)
      if (!j.positive && j.fixed >= low && j.fixed <= high) {
        sum += sigmoid((row.score - j.score) / tau);
        ++count;
      }
    return sum / count;
  });
}

double slow_loss(const SlowLoss& loss, const PoolRows& rows, const std::vector<double>& fixed) {
  double sum = 0;
  double valid = 0;
  for (std::int64_t c = 0; c < rows.classes; ++c) {
    const WeightedClass of(rows, fixed, c);
    if (of.mass == 0) continue;
    sum += loss(of);
    ++valid;
  }
  return sum / valid;
}

TEST(WeightedDefinitions, LossAndGradientAreThoseOfTheDefinition) {
  const std::vector<std::pair<RankingKind, SlowLoss>> all{{smooth_ap_kind(), slow_smooth_ap},
                                                          {recall_kind(), slow_recall},
                                                          {trapezoid_kind(), slow_trapezoid},
                                                          {pairwise_kind(), slow_pairwise}};
  for (const auto& [kind, slow] : all)
    for (const std::int64_t classes : {1, 3}) {
      SCOPED_TRACE(kind.name + " of " + std::to_string(classes));
      auto rows = make_pool_rows(40, classes, 9);
      add_weights(rows, 5);
      const auto got = call_pool(*kind.make(classes, {}), nullptr, rows);
      const auto fixed = rows.logits;
      EXPECT_NEAR(got.loss, slow_loss(slow, rows, fixed), 1e-12);
      const auto unweighted = make_pool_rows(40, classes, 9);
      EXPECT_GT(std::abs(call_pool(*kind.make(classes, {}), nullptr, unweighted).loss - got.loss),
                1e-4);
      for (std::size_t i = 0; i < rows.logits.size(); ++i)
        ASSERT_NEAR(
            got.grad[i],
            central_difference(rows.logits[i], 1e-6,
                               [&, &function = slow] { return slow_loss(function, rows, fixed); }),
            1e-6)
            << i;
    }
}

}  // namespace
}  // namespace tutti::test
