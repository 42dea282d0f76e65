#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/metrics.hpp>

#include "support/errors.hpp"

namespace tutti::test {
namespace {

using metrics::ScoredRows;

const std::vector<float> scores{1, 2.5, -3};
const std::vector<std::int64_t> targets{1, 0, 1};
const std::vector<double> weights{0.5, 2, 0};

std::vector<std::pair<double, double>> content(const ScoredRows& rows) {
  std::vector<std::pair<double, double>> all;
  for (const auto& row : rows.rows()) all.emplace_back(row.score, row.weight);
  return all;
}

ScoredRows some(bool weighted) {
  ScoredRows rows(weighted);
  rows.add(scores, targets, weighted ? ConstTensorView(weights) : ConstTensorView());
  return rows;
}

TEST(ScoredRows, TakesEveryDTypeAndLeavesOutRowsOfWeight0) {
  EXPECT_EQ(content(some(false)),
            (std::vector<std::pair<double, double>>{{1, 1}, {2.5, -1}, {-3, 1}}));
  EXPECT_EQ(content(some(true)), (std::vector<std::pair<double, double>>{{1, 0.5}, {2.5, -2}}));
  const std::vector<BFloat16> half{BFloat16(1), BFloat16(2.5F), BFloat16(-3)};
  const std::uint8_t bytes[] = {1, 0, 1};
  for (const DType dtype : {DType::u8, DType::boolean}) {
    ScoredRows rows;
    rows.add(view(half, {3, 1}), {bytes, dtype, {3}});
    EXPECT_EQ(content(rows), content(some(false)));
  }
}

TEST(ScoredRows, ABatchThatDoesNotFitIsRefusedAndChangesNothing) {
  const struct {
    ConstTensorView scores, targets, weights;
    Errc code;
    std::string text;
  } cases[] = {
      {targets, targets, weights, Errc::invalid_argument, "scores are i64"},
      {scores, scores, weights, Errc::invalid_argument, "targets are f32"},
      {scores, targets, targets, Errc::invalid_argument, "weights are i64"},
      {scores, view(std::span(targets).first(2), {2}), weights, Errc::invalid_argument,
       "targets are [2], with 3 scores"},
      {view(scores, {1, 3}), targets, weights, Errc::invalid_argument, "scores are [1, 3]"},
      {scores, targets, {}, Errc::invalid_argument, "weights are [0], with 3 scores"},
      {{nullptr, DType::f32, {3}}, targets, weights, Errc::invalid_argument, "null"},
      {{scores.data(), DType::f32, {3}, {DeviceType::cuda, 0}},
       targets,
       weights,
       Errc::unsupported,
       "scores are on cuda:0"},
  };
  auto rows = some(true);
  for (const auto& c : cases)
    expect_error(c.code, {c.text}, [&] { rows.add(c.scores, c.targets, c.weights); });
  EXPECT_EQ(content(rows), content(some(true)));
  auto unweighted = some(false);
  expect_error(Errc::invalid_argument, {"weights are [3]"},
               [&] { unweighted.add(scores, targets, weights); });
}

TEST(ScoredRows, StatesOfSeveralRanksAreMergedByOne) {
  for (const bool weighted : {false, true}) {
    ScoredRows all(weighted);
    for (int rank = 0; rank < 2; ++rank) {
      ScoredRows loaded(weighted);
      loaded.load(some(weighted).save());
      EXPECT_EQ(content(loaded), content(some(weighted)));
      all.merge(loaded);
    }
    auto twice = some(weighted);
    twice.merge(twice);
    EXPECT_EQ(content(all), content(twice));
    EXPECT_EQ(twice.rows().size(), 2 * some(weighted).rows().size());
  }
}

TEST(ScoredRows, OtherBytesAreNoStateAndChangeNothing) {
  auto rows = some(true);
  auto damaged = rows.save();
  damaged.back() = static_cast<char>(damaged.back() + 1);
  expect_error(Errc::invalid_argument, {"damaged"}, [&] { rows.load(damaged); });
  expect_error(Errc::invalid_argument, {"not a saved state"}, [&] { rows.load("TUTT"); });
  expect_error(Errc::invalid_argument, {"without weights", "with"},
               [&] { rows.load(some(false).save()); });
  expect_error(Errc::invalid_argument, {"without weights"}, [&] { rows.merge(some(false)); });
  EXPECT_EQ(content(rows), content(some(true)));
}

TEST(ScoredRows, AnInvalidElementIsKeptInWordsUntilReset) {
  auto rows = some(false);
  const std::vector<double> with_nan{1, std::nan(""), 1};
  const std::vector<std::int64_t> others{3, 4, 5};
  rows.add(with_nan, targets);
  rows.add(scores, others);
  EXPECT_EQ(rows.invalid(), "scores[1] of batch 1 is nan; it must be a number");
  EXPECT_EQ(content(rows), content(some(false))) << "the batch is left out";
  expect_error(Errc::invalid_argument, {"scores[1]"}, [&] { (void)rows.save(); });
  ScoredRows other;
  other.merge(rows);
  EXPECT_EQ(other.invalid(), rows.invalid());
  rows.reset();
  EXPECT_EQ(rows.invalid(), "");
  EXPECT_TRUE(rows.rows().empty());
}

}  // namespace
}  // namespace tutti::test
