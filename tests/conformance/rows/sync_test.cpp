#include <tutti/sync.hpp>

#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "conformance/cells.hpp"
#include "conformance/observed.hpp"
#include "support/dtypes.hpp"

namespace tutti::test {
namespace {

class Sync : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
  int size() const { return GetParam().size; }
};
INSTANTIATE_TEST_SUITE_P(Worlds, Sync, testing::ValuesIn(worlds()), CaseName());

class SyncOfSeveral : public Sync {};
INSTANTIATE_TEST_SUITE_P(Worlds, SyncOfSeveral, testing::ValuesIn(worlds_of_several()), CaseName());

TEST_P(Sync, NumbersComeBackAsNumbers) {
  on_ranks(world(), [](ProcessGroup& group) {
    const int n = group.size();
    const int rank = group.rank();
    const auto before = calls_of(group);
    EXPECT_EQ(all_reduce_number(group, 0.25 * (rank + 1)), 0.125 * n * (n + 1));
    EXPECT_EQ(calls_of(group), before + 1);
    EXPECT_EQ(all_reduce_number(group, 0.5 * rank, ReduceOp::avg), 0.25 * (n - 1));
    EXPECT_EQ(all_reduce_number(group, 1.5F, ReduceOp::max), 1.5);
    EXPECT_EQ(all_reduce_number(group, 8.0, ReduceOp::premul(0.5 * (rank + 1))), 2 * n * (n + 1));
    EXPECT_EQ(all_reduce_number(group, rank + 1), n * (n + 1) / 2);
    EXPECT_EQ(all_reduce_number(group, rank, ReduceOp::max), n - 1);
    EXPECT_EQ(all_reduce_number(group, 1 << rank, ReduceOp::bor), (1 << n) - 1);
    // Not converted to double, which has 53 bits.
    constexpr std::int64_t large = (std::int64_t{1} << 53) + 1;
    EXPECT_EQ(all_reduce_number(group, large), large * n);
    EXPECT_EQ(all_reduce_number(group, large, ReduceOp::min), large);
    // -3 / 2 is -1, not -2 as with a shift or a floor.
    EXPECT_EQ(all_reduce_number(group, rank == 0 ? -3 : 0, ReduceOp::avg), -3 / n);
    expect_error(Errc::invalid_argument, {"all_reduce", "bor", "floats"},
                 [&] { (void)all_reduce_number(group, 1.0, ReduceOp::bor); });
    expect_usable(group);
  });
}

// Means and losses.

TEST_P(Sync, TheGlobalMeanWeighsRanksByTheirRows) {
  on_ranks(world(), [](ProcessGroup& group) {
    // Rank r has r rows of r each: rank 0 has none.
    double sum = 0;
    double count = 0;
    for (int r = 0; r < group.size(); ++r) {
      sum += r * r;
      count += r;
    }
    const double rank = group.rank();
    const double mean = global_mean(group, rank * rank, rank);
    if (group.size() == 1)
      EXPECT_TRUE(std::isnan(mean)) << "no rank has rows";
    else
      EXPECT_EQ(mean, sum / count);
    EXPECT_TRUE(std::isnan(global_mean(group, 0, 0)));
    EXPECT_TRUE(std::isnan(global_mean(group, std::nan(""), 1)));
    EXPECT_EQ(global_mean(group, 6, 4), 1.5);
    const auto before = calls_of(group);
    EXPECT_EQ(global_mean(group, 1, 2), 0.5);
    EXPECT_EQ(calls_of(group), before + 1);
  });
}

TEST_P(Sync, LossesAreReducedByNameInOneRound) {
  on_ranks(world(), [](ProcessGroup& group) {
    const int n = group.size();
    const double rank = group.rank();
    const std::vector<NamedLoss> losses{{"loss", rank + 1, rank + 1},
                                        {"", 3 * rank, 2},
                                        {"with 'quotes', and\nlines", -1, rank == 0 ? 4.0 : 0.0},
                                        {"of no rank", 0, 0}};
    const auto before = calls_of(group);
    const auto means = reduce_losses(group, losses);
    EXPECT_EQ(calls_of(group), before + (inlines(group) ? 1U : 2U));
    ASSERT_EQ(means.size(), 4U);
    EXPECT_EQ(means[0], 1.0);
    EXPECT_EQ(means[1], 3.0 * n * (n - 1) / 2 / (2 * n));
    EXPECT_EQ(means[2], -n / 4.0);
    EXPECT_TRUE(std::isnan(means[3]));
    EXPECT_TRUE(reduce_losses(group, {}).empty());
  });
}

// Sums of numbers of different magnitude round. The ranks are added in order, so the result is the
// same on all.
TEST_P(Sync, LossesHaveTheSameBitsOnEveryRankAndBackend) {
  on_ranks(world(), [](ProcessGroup& group) {
    const auto value = [](int r) { return std::exp(3.7 * r) / 3; };
    const std::vector<NamedLoss> mine{{"loss", value(group.rank()), 0.1}};
    double sum = 0;
    double count = 0;
    for (int r = 0; r < group.size(); ++r) {
      sum += value(r);
      count += 0.1;
    }
    EXPECT_EQ(reduce_losses(group, mine)[0], sum / count);
  });
}

TEST_P(Sync, ManyLossesWithLongNamesNeedNotFitInOneRound) {
  on_ranks(world(), [](ProcessGroup& group) {
    std::vector<NamedLoss> losses;
    for (int i = 0; i < 700; ++i)
      losses.push_back({std::string(100, 'x') + std::to_string(i), 1.0 * i, 2});
    const auto means = reduce_losses(group, losses);
    ASSERT_EQ(means.size(), losses.size());
    for (std::size_t i = 0; i < means.size(); ++i) EXPECT_EQ(means[i], losses[i].sum / 2);
  });
}

// In normal mode too, because no backend needs to compare for this.
TEST_P(SyncOfSeveral, OtherNamesAreAMismatchOnEveryRank) {
  using Losses = std::vector<NamedLoss>;
  const Losses usual{{"loss", 1, 1}, {"aux", 2, 1}};
  struct Case {
    Losses other;
    std::string text;
  };
  const std::vector<Case> cases{
      {{{"loss", 1, 1}, {"auks", 2, 1}}, "2 losses: 'loss', 'auks'"},
      {{{"aux", 1, 1}, {"loss", 2, 1}}, "2 losses: 'aux', 'loss'"},
      {{{"loss", 1, 1}}, "1 losses: 'loss'"},
      {{{"loss", 1, 1}, {"aux", 2, 1}, {"third", 2, 1}}, "3 losses: 'loss', 'aux', 'third'"},
      {{}, "0 losses"},
      // Concatenated, the names are equal.
      {{{"lossa", 1, 1}, {"ux", 2, 1}}, "2 losses: 'lossa', 'ux'"},
  };
  for (const Case& c : cases)
    for (int odd = 0; odd < size(); ++odd) {
      PerRank<std::string> texts(size());
      on_ranks(world(), [&](ProcessGroup& group) {
        SCOPED_TRACE(c.text);
        const Losses& mine = group.rank() == odd ? c.other : usual;
        const Error error =
            expect_error(Errc::mismatch,
                         {"reduce_losses", group.name(), c.text, "2 losses: 'loss', 'aux'",
                          "rank " + std::to_string(odd) + " has"},
                         [&] { (void)reduce_losses(group, mine); });
        texts[group.rank()] = error.what();
        EXPECT_EQ(reduce_losses(group, usual)[1], 2) << "the group is usable";
      });
      for (const std::string& text : texts.all()) EXPECT_EQ(text, texts[0]);
    }
}

/// A rank's micro-batches in one step: rows and mean of each.
struct MicroBatch {
  std::int64_t rows;
  double mean;
};
/// Rank r has r + 1 micro-batches; the means are chosen so that nothing rounds.
std::vector<MicroBatch> batches_of(int rank) {
  std::vector<MicroBatch> all;
  for (int i = 0; i <= rank; ++i) all.push_back({3 * i + rank + 1, 0.25 * (7 * rank - 5 * i + 1)});
  return all;
}

TEST_P(Sync, TheAccumulatedLossIsTheMeanOfAllRowsOfAllMicroBatches) {
  on_ranks(world(), [](ProcessGroup& group) {
    double sum = 0;
    double rows = 0;
    for (int r = 0; r < group.size(); ++r)
      for (const MicroBatch& batch : batches_of(r)) {
        sum += static_cast<double>(batch.rows) * batch.mean;
        rows += static_cast<double>(batch.rows);
      }
    LossAccumulator losses;
    for (int step = 0; step < 2; ++step) {  // The second step is independent of the first.
      for (const MicroBatch& batch : batches_of(group.rank()))
        losses.add("loss", batch.mean, batch.rows);
      const auto reduced = losses.reduce(group);
      ASSERT_EQ(reduced.size(), 1U);
      EXPECT_EQ(reduced[0].first, "loss");
      EXPECT_EQ(reduced[0].second, sum / rows);
    }
    EXPECT_TRUE(losses.reduce(group).empty());
  });
}

TEST_P(Sync, AccumulatedLossesComeInTheOrderOfTheirNames) {
  on_ranks(world(), [](ProcessGroup& group) {
    // Ranks add their first micro-batches in different orders.
    std::vector<std::string> names{"c", "a", "b"};
    std::rotate(names.begin(), names.begin() + group.rank() % 3, names.end());
    LossAccumulator losses;
    for (const auto& name : names) losses.add(name, name[0], 2);
    using Reduced = std::vector<std::pair<std::string, double>>;
    EXPECT_EQ(losses.reduce(group), (Reduced{{"a", 'a'}, {"b", 'b'}, {"c", 'c'}}));
  });
}

TEST_P(Sync, ARankWithoutMicroBatchesExpectsTheNames) {
  on_ranks(world(), [](ProcessGroup& group) {
    LossAccumulator losses;
    losses.expect("rare");
    for (int step = 0; step < 3; ++step) {  // expect() persists.
      if (group.rank() == 0 && step < 2) losses.add("rare", 0.5, 8);
      const auto reduced = losses.reduce(group);
      ASSERT_EQ(reduced.size(), 1U);
      EXPECT_EQ(reduced[0].first, "rare");
      if (step < 2)
        EXPECT_EQ(reduced[0].second, 0.5);
      else
        EXPECT_TRUE(std::isnan(reduced[0].second)) << "no rank had a row";
    }
  });
}

TEST_P(Sync, TheMeanOfNoRowsIsNotRead) {
  on_ranks(world(), [](ProcessGroup& group) {
    LossAccumulator losses;
    losses.add("loss", std::nan(""), 0);
    losses.add("loss", 2, 4);
    EXPECT_EQ(losses.reduce(group)[0].second, 2);
    losses.add("loss", std::nan(""), group.rank() == 0 ? 1 : 0);
    EXPECT_TRUE(std::isnan(losses.reduce(group)[0].second)) << "a row's NaN is one";
    losses.add("loss", 1, 1);
    expect_error(Errc::invalid_argument, {"'loss'", "-3 rows"}, [&] { losses.add("loss", 1, -3); });
    EXPECT_EQ(losses.reduce(group)[0].second, 1) << "the refused one has left nothing";
  });
}

TEST_P(SyncOfSeveral, AnErrorLeavesTheAccumulatedAsItWas) {
  on_ranks(world(), [](ProcessGroup& group) {
    LossAccumulator losses;
    losses.add("loss", 3, 2);
    if (group.rank() == 0) losses.add("extra", 1, 1);
    expect_error(Errc::mismatch, {"'extra', 'loss'", "1 losses: 'loss'"},
                 [&] { (void)losses.reduce(group); });
    losses.expect("extra");
    const auto reduced = losses.reduce(group);
    ASSERT_EQ(reduced.size(), 2U);
    EXPECT_EQ(reduced[0].second, 1);
    EXPECT_EQ(reduced[1].second, 3);
  });
}

}  // namespace
}  // namespace tutti::test
