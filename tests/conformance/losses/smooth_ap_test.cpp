#include <tutti/losses/smooth_ap.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include <fmt/format.h>

#include "conformance/losses/loss_rows.hpp"

// A loss over the rows of all ranks equals that of one process with all rows, for any split.

namespace tutti::test {
namespace {

using losses::LossResult;
using losses::Reduction;
using losses::SmoothAp;

/// Every fifth row is ignored; with several classes the last one has no positive.
LossRows make_smooth_ap_rows(std::int64_t count, std::int64_t classes, unsigned seed = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> score;
  LossRows rows{classes, {}, {}};
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::int64_t c = 0; c < classes; ++c) rows.logits.push_back(score(random));
    const auto some = static_cast<std::int64_t>(random() % 1000);
    if (i % 5 == 4)
      rows.targets.push_back(losses::default_ignore_index);
    else
      rows.targets.push_back(classes == 1 ? some % 3 == 0 : some % (classes - 1));
  }
  return rows;
}

/// Computed by the definition: every anchor with every row.
double by_definition(const LossRows& rows, std::int64_t c, double temperature) {
  std::vector<std::size_t> kept;
  for (std::size_t i = 0; i < rows.targets.size(); ++i)
    if (rows.targets[i] != losses::default_ignore_index) kept.push_back(i);
  const auto score = [&](std::size_t i) {
    return rows.logits[i * static_cast<std::size_t>(rows.classes) + static_cast<std::size_t>(c)];
  };
  const auto positive = [&](std::size_t i) {
    return rows.classes == 1 ? rows.targets[i] != 0 : rows.targets[i] == c;
  };
  double sum = 0;
  double positives = 0;
  for (const auto k : kept) {
    if (!positive(k)) continue;
    double a = 1;
    double b = 1;
    for (const auto j : kept) {
      if (j == k) continue;
      const double s = 1 / (1 + std::exp(-(score(j) - score(k)) / temperature));
      a += s;
      if (positive(j)) b += s;
    }
    sum += b / a;
    positives += 1;
  }
  return positives == 0 || positives == static_cast<double>(kept.size())
             ? std::numeric_limits<double>::quiet_NaN()
             : 1 - sum / positives;
}

template <typename T>
std::vector<T> values(const Tensor& tensor) {
  const auto* data = static_cast<const T*>(tensor.data());
  return {data, data + tensor.shape().numel()};
}

/// Splits of `total` rows over the ranks.
std::vector<Layout> splits(std::int64_t total, int ranks) {
  const auto w = index(ranks);
  std::vector<Layout> all;
  Layout even(w, total / ranks);
  even.back() += total % ranks;
  all.push_back(even);
  Layout one(w, 0);
  one.front() = total;
  all.push_back(one);
  Layout growing;
  std::int64_t left = total;
  for (int r = 0; r < ranks; ++r)
    growing.push_back(r + 1 == ranks ? left : std::min<std::int64_t>(left, r * total / 8));
  for (int r = 0; r + 1 < ranks; ++r) left -= growing[index(r)];
  growing.back() = left;
  all.push_back(growing);
  return all;
}

class SmoothApOfRanks : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, SmoothApOfRanks, testing::ValuesIn(worlds()), CaseName());

template <typename T>
void expect_one_process(const World& world, const LossRows& rows, const SmoothAp::Options& options,
                        double tolerance) {
  const auto whole = rows.part<T>(0, rows.count());
  const LossResult want = SmoothAp(options)(whole.view());
  const auto gradient = values<T>(want.grad);
  double largest = 0;
  for (const auto g : gradient) largest = std::max(largest, std::abs(static_cast<double>(g)));
  for (const Layout& split : splits(rows.count(), world.size)) {
    on_ranks(world, [&](ProcessGroup& group) {
      SCOPED_TRACE("rows " + to_string(split));
      const auto first = offset(split, group.rank());
      const auto mine = rows.part<T>(first, split[index(group.rank())]);
      const auto got = SmoothAp(options)(group, mine.view());
      EXPECT_NEAR(got.loss, want.loss, tolerance * std::abs(want.loss));
      ASSERT_EQ(got.status, want.status);
      for (std::size_t c = 0; c < got.per_class.size(); ++c) {
        if (got.status[c] != losses::ClassStatus::valid)
          EXPECT_TRUE(std::isnan(got.per_class[c]));
        else
          EXPECT_NEAR(got.per_class[c], want.per_class[c], tolerance);
      }
      const auto part = values<T>(got.grad);
      ASSERT_EQ(got.grad.shape(), mine.view().logits.shape);
      const double scale =
          options.grad_scale == GradScale::sum ? static_cast<double>(group.size()) : 1.0;
      for (std::size_t i = 0; i < part.size(); ++i)
        ASSERT_NEAR(static_cast<double>(part[i]),
                    scale * static_cast<double>(
                                gradient[static_cast<std::size_t>(first * rows.classes) + i]),
                    tolerance * scale * largest);
    });
  }
}

TEST_P(SmoothApOfRanks, IsThatOfOneProcessForAnySplit) {
  for (const std::int64_t classes : {1, 4})
    for (const std::int64_t count : {5, 101, 700}) {
      SCOPED_TRACE(count);
      if (reduced() && count > 200) continue;
      const LossRows rows = make_smooth_ap_rows(count, classes);
      expect_one_process<double>(GetParam(), rows, {.classes = classes}, 1e-12);
      expect_one_process<double>(GetParam(), rows,
                                 {.classes = classes,
                                  .temperature = 0.5,
                                  .reduction = Reduction::sum,
                                  .grad_scale = GradScale::mean},
                                 1e-12);
      expect_one_process<float>(GetParam(), rows, {.classes = classes}, 1e-5);
    }
}

// More rows than an metadata exchange inlines, and enough for the engine of cells.
TEST_P(SmoothApOfRanks, IsThatOfOneProcessForManyRows) {
  expect_one_process<double>(GetParam(), make_smooth_ap_rows(reduced() ? 2000 : 9000, 1),
                             {.temperature = 0.05}, 1e-12);
}

TEST_P(SmoothApOfRanks, ClassesThatAreNotValidCountNowhere) {
  LossRows rows = make_smooth_ap_rows(40, 3);
  for (auto& target : rows.targets) target = target < 0 ? target : 1;
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const auto mine = rows.part<double>(0, group.rank() == 0 ? rows.count() : 0);
    const auto got = SmoothAp({.classes = 3})(group, mine.view());
    EXPECT_EQ(got.loss, 0);
    EXPECT_EQ(std::ranges::count(got.status, losses::ClassStatus::valid), 0);
    for (const double g : values<double>(got.grad)) EXPECT_EQ(g, 0);
  });
}

TEST_P(SmoothApOfRanks, AMistakeOfOneRankIsAnErrorOnAll) {
  const World& world = GetParam();
  const LossRows rows = make_smooth_ap_rows(12, 3);
  struct Mistake {
    const char* text;
    std::function<void(LossRows::Batch<double>&)> make;
  };
  const Mistake mistakes[] = {
      {"logits[1, 2] is nan", [](auto& b) { b.logits[5] = std::nan(""); }},
      {"targets[3] is 3", [](auto& b) { b.targets[3] = 3; }},
      {"targets[3] is -1", [](auto& b) { b.targets[3] = -1; }},
      {"targets are i64 [11]", [](auto& b) { b.targets.pop_back(); }},
  };
  on_ranks(world, [&](ProcessGroup& group) {
    const bool last = group.rank() == group.size() - 1;
    for (const auto& mistake : mistakes) {
      auto mine = rows.part<double>(0, 12);
      const Shape shape{12, 3};
      if (last) mistake.make(mine);
      expect_error(last ? Errc::invalid_argument : Errc::mismatch, {"smooth_ap", mistake.text},
                   [&] {
                     SmoothAp({.classes = 3})(
                         group, {{mine.logits.data(), DType::f64, shape}, mine.targets});
                   });
    }
    if (group.size() > 1) {
      const auto mine = rows.part<double>(0, 12);
      expect_error(Errc::mismatch, {"temperature 0.02", "temperature 0.01"}, [&] {
        SmoothAp({.classes = 3, .temperature = last ? 0.02 : 0.01})(group, mine.view());
      });
    }
    (void)SmoothAp({.classes = 3})(group, rows.part<double>(0, 12).view());
  });
}

TEST(SmoothApAlone, IsWhatItsDefinitionSays) {
  for (const std::int64_t classes : {1, 3})
    for (const double temperature : {1e-3, 0.01, 0.3, 5.0}) {
      const LossRows rows = make_smooth_ap_rows(150, classes);
      const auto batch = rows.part<double>(0, rows.count());
      const auto got = SmoothAp({.classes = classes, .temperature = temperature})(batch.view());
      double sum = 0;
      double valid = 0;
      for (std::int64_t c = 0; c < classes; ++c) {
        const double want = by_definition(rows, c, temperature);
        EXPECT_EQ(got.status[index(static_cast<int>(c))] != losses::ClassStatus::valid,
                  std::isnan(want));
        if (std::isnan(want)) continue;
        EXPECT_NEAR(got.per_class[index(static_cast<int>(c))], want, 1e-12);
        sum += want;
        valid += 1;
      }
      EXPECT_NEAR(got.loss, sum / valid, 1e-12);
    }
}

TEST(SmoothApAlone, TheGradientIsThatOfFiniteDifferences) {
  LossRows rows = make_smooth_ap_rows(60, 3);
  SmoothAp loss({.classes = 3, .temperature = 0.3});
  const auto at = [&] { return loss(rows.part<double>(0, rows.count()).view()); };
  const auto gradient = values<double>(at().grad);
  constexpr double step = 1e-5;  // The error is step^2 / temperature^2, plus 1e-16 / step.
  for (std::size_t i = 0; i < rows.logits.size(); ++i)
    EXPECT_NEAR(gradient[i], central_difference(rows.logits[i], step, [&] { return at().loss; }),
                1e-8)
        << i;
}

TEST(SmoothApAlone, NoNumberDependsOnTheThreads) {
  const LossRows rows = make_smooth_ap_rows(reduced() ? 1000 : 9000, 3);
  const auto batch = rows.part<double>(0, rows.count());
  const auto want = SmoothAp({.classes = 3})(batch.view());
  for (const int threads : {2, 3, 7}) {
    const auto got = SmoothAp({.classes = 3, .threads = threads})(batch.view());
    EXPECT_EQ(got.loss, want.loss);
    EXPECT_EQ(values<double>(got.grad), values<double>(want.grad));
  }
}

TEST(SmoothApAlone, HalfTypesAndVectorsAreTaken) {
  const std::vector<float> logits{0.5F, 0.25F, -1, 2};
  const std::vector<std::int64_t> targets{1, 0, 1, 0};
  const auto want = SmoothAp()({logits, targets});
  std::vector<BFloat16> half;
  for (const float x : logits) half.emplace_back(x);
  const auto got = SmoothAp()({half, targets});
  EXPECT_EQ(got.loss, want.loss);
  EXPECT_EQ(got.grad.dtype(), DType::bf16);
  EXPECT_EQ(got.grad.shape(), Shape{4});
  EXPECT_NEAR(want.loss, 1 - (1.0 / 2 + 2.0 / 4) / 2, 1e-9);
}

TEST(SmoothApAlone, OptionsOutOfRangeAreRefused) {
  expect_error(Errc::invalid_argument, {"classes is 0"}, [] { SmoothAp({.classes = 0}); });
  for (const double bad : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()})
    expect_error(Errc::invalid_argument, {"temperature"}, [&] { SmoothAp({.temperature = bad}); });
  expect_error(Errc::invalid_argument, {"threads is 0"}, [] { SmoothAp({.threads = 0}); });
  expect_error(Errc::invalid_argument, {"queue is -1"}, [] { SmoothAp({.pool = {.queue = -1}}); });
  expect_error(Errc::invalid_argument, {"max_rows is -1"},
               [] { SmoothAp({.pool = {.max_rows = -1}}); });
  const std::vector<std::int32_t> targets{1};
  const std::vector<float> logits{1};
  expect_error(Errc::invalid_argument, {"targets are i32", "i64"}, [&] {
    SmoothAp()({logits, targets});
  });
  for (const std::int64_t bad : {-1, 2}) {
    const std::vector<std::int64_t> wrong{1, bad};
    const std::vector<float> two{1, 2};
    expect_error(Errc::invalid_argument, {fmt::format("targets[1] is {}", bad), "0 to 1"}, [&] {
      SmoothAp()({two, wrong});
    });
    (void)SmoothAp({.pool = {.other_targets = true}})({two, wrong});
  }
  expect_error(Errc::invalid_argument, {"logits are i32"}, [&] { SmoothAp()({targets, targets}); });
}

}  // namespace
}  // namespace tutti::test
