#include <tutti/losses/recall_at_quantile.hpp>

#include <algorithm>
#include <cmath>
#include <random>

#include "conformance/cells.hpp"
#include "support/call_loss.hpp"

namespace tutti::test {
namespace {

using losses::Interpolation;
using losses::LossResult;
using losses::RecallAtQuantile;
using losses::Reduction;

constexpr Interpolation interpolations[] = {Interpolation::linear, Interpolation::lower,
                                            Interpolation::higher, Interpolation::nearest,
                                            Interpolation::midpoint};

struct RecallRows {
  std::int64_t classes = 1;
  std::vector<double> logits;
  std::vector<std::int64_t> targets;

  std::int64_t count() const { return std::ssize(targets); }
  double score(std::int64_t row, std::int64_t c) const {
    return logits[static_cast<std::size_t>(row * classes + c)];
  }
};

RecallRows make_recall_rows(std::int64_t count, std::int64_t classes, unsigned seed = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> score;
  RecallRows rows{classes, {}, {}};
  for (std::int64_t i = 0; i < count; ++i) {
    // Ties are the hard case of order statistics.
    for (std::int64_t c = 0; c < classes; ++c)
      rows.logits.push_back(random() % 2 == 0 ? std::round(score(random)) : score(random));
    const auto some = static_cast<std::int64_t>(random() % 1000);
    rows.targets.push_back(i % 6 == 5     ? losses::default_ignore_index
                           : classes == 1 ? some % 3 == 0
                                          : some % (classes - 1));
  }
  return rows;
}

template <typename T>
LossResult loss_of(const RecallAtQuantile::Options& options, ProcessGroup* group,
                   const RecallRows& rows, std::int64_t first, std::int64_t n) {
  std::vector<T> logits;
  for (std::int64_t i = first * rows.classes; i < (first + n) * rows.classes; ++i)
    logits.push_back(static_cast<T>(rows.logits[static_cast<std::size_t>(i)]));
  const auto targets =
      std::span(rows.targets).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(n));
  const losses::Batch batch{view(std::span<const T>(logits), {n, rows.classes}), targets};
  return call_loss(RecallAtQuantile(options), group, batch);
}

/// Computed by the definition: all scores sorted.
double threshold_of(const RecallRows& rows, std::int64_t c, const RecallAtQuantile::Options& o) {
  std::vector<double> all;
  for (std::int64_t i = 0; i < rows.count(); ++i)
    if (rows.targets[static_cast<std::size_t>(i)] != o.ignore_index)
      all.push_back(rows.score(i, c));
  std::ranges::sort(all);
  const double place = (1 - o.quantile) * static_cast<double>(all.size() - 1);
  const double low = all[static_cast<std::size_t>(std::floor(place))];
  const double high = all[static_cast<std::size_t>(std::ceil(place))];
  switch (o.interpolation) {
    case Interpolation::linear:
      return low + (high - low) * (place - std::floor(place));
    case Interpolation::lower:
      return low;
    case Interpolation::higher:
      return high;
    case Interpolation::nearest:
      return all[static_cast<std::size_t>(std::nearbyint(place))];
    case Interpolation::midpoint:
      break;
  }
  return (low + high) / 2;
}

class RecallOfRanks : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, RecallOfRanks, testing::ValuesIn(worlds()), CaseName());

template <typename T>
void expect_one_process(const World& world, const RecallRows& rows,
                        const RecallAtQuantile::Options& options, double tolerance) {
  const auto want = loss_of<T>(options, nullptr, rows, 0, rows.count());
  for (Layout split : layouts(world.size)) {
    split.back() += rows.count() - total(split);
    if (split.back() < 0) continue;
    on_ranks(world, [&](ProcessGroup& group) {
      SCOPED_TRACE("rows " + to_string(split));
      const auto first = offset(split, group.rank());
      const auto got = loss_of<T>(options, &group, rows, first, split[index(group.rank())]);
      EXPECT_NEAR(got.loss, want.loss, tolerance);
      EXPECT_EQ(got.status, want.status);
      const auto* part = static_cast<const T*>(got.grad.data());
      const auto* all = static_cast<const T*>(want.grad.data()) + first * rows.classes;
      for (std::int64_t i = 0; i < got.grad.shape().numel(); ++i)
        ASSERT_NEAR(part[i], static_cast<T>(group.size()) * all[i], tolerance);
    });
  }
}

TEST_P(RecallOfRanks, IsThatOfOneProcessForAnySplit) {
  for (const std::int64_t classes : {1, 3})
    for (const auto interpolation : {Interpolation::linear, Interpolation::higher}) {
      if (reduced() && classes > 1) continue;
      const RecallRows rows = make_recall_rows(230, classes);
      const RecallAtQuantile::Options options{
          .classes = classes, .quantile = 0.1, .temperature = 0.2, .interpolation = interpolation};
      expect_one_process<double>(GetParam(), rows, options, 1e-12);
      expect_one_process<float>(GetParam(), rows, options, 1e-5);
    }
}

TEST_P(RecallOfRanks, AMistakeOfOneRankIsAnErrorOnAll) {
  const RecallRows rows = make_recall_rows(12, 3);
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const bool last = group.rank() == group.size() - 1;
    RecallRows mine = rows;
    if (last) mine.targets[2] = 7;
    expect_error(last ? Errc::invalid_argument : Errc::mismatch,
                 {"recall_at_quantile", "targets[2] is 7"},
                 [&] { loss_of<double>({.classes = 3}, &group, mine, 0, 12); });
    if (group.size() > 1)
      expect_error(Errc::mismatch, {"quantile 0.25", "quantile 0.5"}, [&] {
        loss_of<double>({.classes = 3, .quantile = last ? 0.25 : 0.5}, &group, rows, 0, 12);
      });
    loss_of<double>({.classes = 3}, &group, rows, 0, 12);
  });
}

TEST(RecallAlone, IsWhatItsDefinitionSaysAndSoIsItsGradient) {
  for (const std::int64_t classes : {1, 3})
    for (const auto interpolation : interpolations)
      for (const double quantile : {0.005, 0.1, 0.5, 0.9}) {
        const RecallRows rows = make_recall_rows(150, classes, 5);
        const RecallAtQuantile::Options options{.classes = classes,
                                                .quantile = quantile,
                                                .temperature = 0.3,
                                                .interpolation = interpolation,
                                                .reduction = Reduction::sum,
                                                .grad_scale = GradScale::mean};
        const auto got = loss_of<double>(options, nullptr, rows, 0, rows.count());
        double sum = 0;
        for (std::int64_t c = 0; c < classes; ++c) {
          const double threshold = threshold_of(rows, c, options);
          double recalled = 0;
          double positives = 0;
          const auto positive = [&](std::int64_t i) {
            const auto target = rows.targets[static_cast<std::size_t>(i)];
            return target != options.ignore_index && (classes == 1 ? target != 0 : target == c);
          };
          for (std::int64_t i = 0; i < rows.count(); ++i) positives += positive(i) ? 1 : 0;
          const auto* grad = static_cast<const double*>(got.grad.data());
          for (std::int64_t i = 0; i < rows.count(); ++i) {
            const double s =
                1 / (1 + std::exp(-(rows.score(i, c) - threshold) / options.temperature));
            if (positive(i)) recalled += s;
            EXPECT_NEAR(grad[i * classes + c],
                        positive(i) ? -s * (1 - s) / (positives * options.temperature) : 0, 1e-13);
          }
          EXPECT_EQ(got.status[static_cast<std::size_t>(c)] == losses::ClassStatus::valid,
                    positives > 0);
          if (positives == 0) continue;
          EXPECT_NEAR(got.per_class[static_cast<std::size_t>(c)], 1 - recalled / positives, 1e-13);
          sum += 1 - recalled / positives;
        }
        EXPECT_NEAR(got.loss, sum, 1e-12);
      }
}

TEST(RecallAlone, AllPositiveIsValidAndNonePositiveIsNot) {
  const std::vector<float> logits{1, 2, 3};
  const std::vector<std::int64_t> ones{1, 1, 1};
  const auto all = RecallAtQuantile()({logits, ones});
  EXPECT_EQ(all.status[0], losses::ClassStatus::valid);
  const std::vector<std::int64_t> zeros{0, 0, 0};
  const auto none = RecallAtQuantile()({logits, zeros});
  EXPECT_EQ(none.status[0], losses::ClassStatus::no_positives);
  EXPECT_EQ(none.loss, 0);
  EXPECT_TRUE(std::isnan(none.per_class[0]));
}

TEST(RecallAlone, OptionsOutOfRangeAreRefused) {
  for (const double bad : {0.0, 1.0, -0.5, std::nan("")})
    expect_error(Errc::invalid_argument, {"quantile is"},
                 [&] { RecallAtQuantile({.quantile = bad}); });
  expect_error(Errc::invalid_argument, {"temperature is 0"},
               [] { RecallAtQuantile({.temperature = 0}); });
  expect_error(Errc::invalid_argument, {"classes is -1"},
               [] { RecallAtQuantile({.classes = -1}); });
}

}  // namespace
}  // namespace tutti::test
