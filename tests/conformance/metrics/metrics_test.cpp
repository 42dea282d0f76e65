#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <tutti/metrics.hpp>

#include "conformance/cells.hpp"
#include "conformance/losses/loss_rows.hpp"
#include "support/recorded.hpp"

// Metrics over the rows of all ranks: equal to scikit-learn and numpy (tests/data/metrics), and the
// same bits for every split and order of the rows.

namespace tutti::test {
namespace {

using metrics::BinaryMetrics;
using metrics::BinaryOptions;
using metrics::quantiles;
using metrics::ScoredRows;

class Metrics : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, Metrics, testing::ValuesIn(worlds()), CaseName());

class MetricsOfSeveral : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, MetricsOfSeveral, testing::ValuesIn(worlds_of_several()),
                         CaseName());

constexpr double infinity = std::numeric_limits<double>::infinity();

/// Rows of all ranks.
struct Scored {
  std::vector<double> scores{};
  std::vector<std::int64_t> targets{};
  std::vector<double> weights{};  ///< Empty: none.
  bool in_float = false;

  std::int64_t count() const { return std::ssize(targets); }

  /// The rows of one rank, in two batches.
  ScoredRows part(std::int64_t first, std::int64_t n) const {
    ScoredRows rows(!weights.empty());
    for (const auto& [from, to] : {std::pair{first, first + n / 3}, {first + n / 3, first + n}}) {
      const auto cut = [from = from, to = to](const auto& all) {
        return std::vector(all.begin() + from, all.begin() + to);
      };
      const auto batch = cut(scores);
      const auto target = cut(targets);
      const auto weight = weights.empty() ? weights : cut(weights);
      const std::vector<float> in_floats(batch.begin(), batch.end());
      rows.add(in_float ? ConstTensorView(in_floats) : ConstTensorView(batch), target, weight);
    }
    return rows;
  }

  Scored shuffled(unsigned seed) const {
    std::vector<std::size_t> order(scores.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::shuffle(order, std::mt19937(seed));
    Scored other{.in_float = in_float};
    for (const auto i : order) {
      other.scores.push_back(scores[i]);
      other.targets.push_back(targets[i]);
      if (!weights.empty()) other.weights.push_back(weights[i]);
    }
    return other;
  }
};

std::vector<double> flat(const BinaryMetrics& m) {
  std::vector<double> all{m.auroc, m.average_precision};
  all.insert(all.end(), m.recalls.begin(), m.recalls.end());
  all.insert(all.end(), m.quantiles.begin(), m.quantiles.end());
  return all;
}

std::vector<std::uint64_t> bits(const BinaryMetrics& m) {
  std::vector<std::uint64_t> all;
  for (const double value : flat(m)) all.push_back(std::bit_cast<std::uint64_t>(value));
  return all;
}

/// The metrics of a group of one rank.
BinaryMetrics alone(const World& world, const Scored& rows, const BinaryOptions& options) {
  BinaryMetrics result;
  on_ranks({world.backend, 1, world.checked}, [&](ProcessGroup& group) {
    result = binary_metrics(group, rows.part(0, rows.count()), options);
  });
  return result;
}

/// Every rank gets the bits of `want` for every split, each of rows in another order.
void expect_everywhere(const World& world, const Scored& rows, const BinaryOptions& options,
                       const BinaryMetrics& want) {
  auto splits = layouts(world.size);
  for (auto& split : splits) {
    std::int64_t given = 0;
    const auto sum = std::max<std::int64_t>(total(split), 1);
    for (auto& n : split) given += n = n * rows.count() / sum;
    split.front() += rows.count() - given;
  }
  std::vector<Scored> orders;
  for (std::size_t i = 0; i < splits.size(); ++i)
    orders.push_back(rows.shuffled(static_cast<unsigned>(i)));
  on_ranks(world, [&](ProcessGroup& group) {
    for (std::size_t i = 0; i < splits.size(); ++i) {
      SCOPED_TRACE(to_string(splits[i]));
      const auto mine =
          orders[i].part(offset(splits[i], group.rank()), splits[i][index(group.rank())]);
      EXPECT_EQ(bits(binary_metrics(group, mine, options)), bits(want));
    }
  });
}

void expect_near(const std::vector<double>& got, const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(std::isnan(got[i]), std::isnan(want[i])) << i;
    if (!std::isnan(want[i])) {
      EXPECT_NEAR(got[i], want[i], 1e-12 * std::max(1.0, std::abs(want[i]))) << i;
    }
  }
}

TEST_P(Metrics, AreThoseOfScikitLearnForEverySplit) {
  enum Field : std::size_t { scores, targets, weights, areas, precisions, recalls, q, quantiles };
  const auto cases = read_recorded(RECORDED "/metrics/metrics.txt");
  ASSERT_EQ(cases.size(), 68U);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE("line " + std::to_string(i + 1));
    const auto& f = cases[i].numbers;
    const Scored rows{f.at(scores),
                      {f.at(targets).begin(), f.at(targets).end()},
                      f.at(weights),
                      cases[i].words == "f32"};
    const BinaryOptions options{f.at(precisions), f.at(q)};
    const auto got = alone(GetParam(), rows, options);
    expect_near({got.auroc, got.average_precision}, f.at(areas));
    expect_near(got.recalls, f.at(recalls));
    expect_near(got.quantiles, f.at(quantiles));
    expect_everywhere(GetParam(), rows, options, got);
  }
}

/// The definitions, one after the other.
std::vector<double> by_definition(const Scored& rows, const BinaryOptions& options) {
  std::vector<std::size_t> order(rows.scores.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t i) { return -rows.scores[i]; });
  const auto weight = [&](std::size_t i) {
    return static_cast<long double>(rows.weights.empty() ? 1 : rows.weights[i]);
  };
  long double all[2] = {};
  for (const auto i : order) all[rows.targets[i]] += weight(i);
  long double seen[2] = {};
  long double auroc = 0;
  long double average = 0;
  std::vector<double> result(2 + options.precisions.size());
  std::vector<std::pair<double, long double>> from_top;  // Score, weight from it upwards.
  for (std::size_t i = 0; i < order.size();) {
    long double here[2] = {};
    const double score = rows.scores[order[i]];
    for (; i < order.size() && rows.scores[order[i]] == score; ++i)
      here[rows.targets[order[i]]] += weight(order[i]);
    auroc += here[1] * (all[0] - seen[0] - here[0] / 2);
    for (const int t : {0, 1}) seen[t] += here[t];
    const auto precision = seen[1] / (seen[0] + seen[1]);
    average += here[1] * precision;
    for (std::size_t p = 0; p < options.precisions.size(); ++p)
      if (static_cast<double>(precision) >= options.precisions[p])
        result[2 + p] = static_cast<double>(seen[1] / all[1]);
    from_top.emplace_back(score, seen[0] + seen[1]);
  }
  result[0] = static_cast<double>(auroc / (all[0] * all[1]));
  result[1] = static_cast<double>(average / all[1]);
  for (const double q : options.quantiles) {
    const auto sum = all[0] + all[1];
    if (!rows.weights.empty()) {
      // The lowest score with q or more of the weight up to it: what is above it is 1 - q or less.
      auto found = from_top.begin();
      while (found + 1 != from_top.end() && (sum - found->second) / sum >= q) ++found;
      result.push_back(found->first);
      continue;
    }
    const double at = q * (static_cast<double>(rows.count()) - 1);
    const auto value = [&](double position) {
      return rows.scores[order[order.size() - 1 - static_cast<std::size_t>(position)]];
    };
    const double low = value(std::floor(at));
    result.push_back(low + (at - std::floor(at)) * (value(std::ceil(at)) - low));
  }
  return result;
}

// Too many for one message, so the rows are sorted over the ranks.
TEST_P(Metrics, OfManyRowsAreTheSameBitsForEverySplit) {
  const BinaryOptions options{{0, 0.4, 0.6, 1}, {0, 0.01, 0.5, 0.9, 1}};
  for (const bool weighted : {false, true}) {
    SCOPED_TRACE(weighted ? "weights" : "no weights");
    std::mt19937_64 random(7);
    std::normal_distribution<double> normal;
    Scored rows;
    for (int i = 0; i < 24'000; ++i) {
      rows.targets.push_back(random() % 3 == 0 ? 1 : 0);
      const double score = normal(random) + static_cast<double>(rows.targets.back());
      rows.scores.push_back(i % 4 == 0 ? std::round(score) : score);
      if (weighted) rows.weights.push_back(std::exp2(5 * normal(random)));
    }
    const auto want = alone(GetParam(), rows, options);
    expect_near(flat(want), by_definition(rows, options));
    expect_everywhere(GetParam(), rows, options, want);
  }
}

TEST_P(Metrics, ZerosAreEqualAndInfinityIsAScore) {
  const Scored rows{{-0.0, 0.0, infinity, -infinity}, {0, 1, 1, 0}};
  const BinaryOptions options{{}, {0, 0.1, 0.5, 0.9, 1}};
  const auto got = alone(GetParam(), rows, options);
  EXPECT_EQ(flat(got), (std::vector<double>{0.875, 1.0 / 2 + 1.0 / 3, -infinity, -infinity, 0,
                                            infinity, infinity}));
  expect_everywhere(GetParam(), rows, options, got);
}

TEST_P(Metrics, WhatIsUndefinedIsNaNOnEveryRank) {
  const BinaryOptions options{{0.5}, {0.5}};
  struct {
    Scored rows;
    std::vector<double> want;
  } const cases[] = {
      {{}, {NAN, NAN, NAN, NAN}},
      {{{1, 3}, {0, 0}}, {NAN, NAN, NAN, 2}},
      {{{1, 3}, {1, 1}}, {NAN, 1, 1, 2}},
      {{{1, 3}, {0, 1}, {0, 0}}, {NAN, NAN, NAN, NAN}},
  };
  for (const auto& c : cases)
    on_ranks(GetParam(), [&](ProcessGroup& group) {
      const auto mine = group.rank() == group.size() - 1 ? c.rows.part(0, c.rows.count())
                                                         : ScoredRows(!c.rows.weights.empty());
      expect_near(flat(binary_metrics(group, mine, options)), c.want);
    });
}

TEST_P(Metrics, EachFunctionIsItsPartOfAll) {
  const Scored rows{{1, 2, 3, 4, 5, 6}, {0, 1, 0, 1, 1, 0}};
  const BinaryOptions options{{0.6}, {0.25, 1}};
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const auto mine = group.rank() == 0 ? rows.part(0, 6) : ScoredRows();
    const auto all = binary_metrics(group, mine, options);
    EXPECT_EQ(auroc(group, mine), all.auroc);
    EXPECT_EQ(average_precision(group, mine), all.average_precision);
    EXPECT_EQ(recall_at_precision(group, mine, 0.6), all.recalls[0]);
    EXPECT_EQ(quantiles(group, mine, options.quantiles), all.quantiles);
    const std::vector<float> values{4, 1, 6, 3, 2, 5};
    const auto shape = group.rank() == 0 ? Shape{3, 2} : Shape{0, 2};
    EXPECT_EQ(quantiles(group, {values.data(), DType::f32, shape}, options.quantiles),
              all.quantiles);
  });
}

TEST_P(MetricsOfSeveral, AnInvalidElementOfOneRankIsNamedOnAll) {
  struct {
    double score;
    std::int64_t target;
    double weight;
    std::string text;
  } const cases[] = {{NAN, 1, 1, "scores[1] of batch 1 is nan"},
                     {0, 2, 1, "targets[1] of batch 1 is 2"},
                     {0, 0, -1, "weights[1] of batch 1 is -1"},
                     {0, 0, infinity, "weights[1] of batch 1 is inf"}};
  for (const auto& c : cases)
    on_ranks(GetParam(), [&](ProcessGroup& group) {
      SCOPED_TRACE(c.text);
      const bool bad = group.rank() == group.size() - 1;
      const Scored rows{{1, c.score}, {1, c.target}, {1, c.weight}};
      auto mine = rows.part(0, 1);
      if (bad) mine.merge(rows.part(0, 2));
      const auto error = expect_error(bad ? Errc::invalid_argument : Errc::mismatch,
                                      {"auroc", c.text}, [&] { (void)auroc(group, mine); });
      EXPECT_EQ(error.where().rank, group.size() - 1);
      if (bad) mine.reset();
      EXPECT_TRUE(std::isnan(auroc(group, mine))) << "the other ranks have positive rows only";
    });
}

TEST_P(MetricsOfSeveral, OtherOptionsOnOneRankAreAnErrorOnAll) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const bool other = group.rank() == 0;
    const ScoredRows none;
    expect_error(Errc::mismatch, {"precisions [0.5]", "precisions [0.25]"},
                 [&] { (void)recall_at_precision(group, none, other ? 0.25 : 0.5); });
    expect_error(Errc::mismatch, {"with weights", "without weights"},
                 [&] { (void)auroc(group, ScoredRows(other)); });
    const std::vector<std::int64_t> integers{1};
    const std::vector<double> numbers{1};
    const std::vector<double> q{0.5, other ? 1.5 : 1};
    const auto code = other ? Errc::invalid_argument : Errc::mismatch;
    expect_error(code, {"quantile 1.5 is not from 0 to 1"},
                 [&] { (void)quantiles(group, none, q); });
    expect_error(code, {"scores are i64"}, [&] {
      (void)quantiles(group, other ? ConstTensorView(integers) : ConstTensorView(numbers), numbers);
    });
    expect_usable(group);
  });
}

}  // namespace
}  // namespace tutti::test
