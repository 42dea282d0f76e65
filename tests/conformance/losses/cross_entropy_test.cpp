#include <tutti/losses/cross_entropy.hpp>

#include <cmath>

#include "conformance/losses/loss_rows.hpp"

namespace tutti::test {
namespace {

using losses::CrossEntropy;
using losses::LossResult;
using losses::Reduction;

class CrossEntropyOfRanks : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, CrossEntropyOfRanks, testing::ValuesIn(worlds()), CaseName());

template <typename T>
void expect_one_process(const World& world, const CrossEntropy::Options& options,
                        double tolerance) {
  const LossRows rows = make_loss_rows(41, options.classes);
  const CrossEntropy loss(options);
  const LossResult want = loss(rows.all<T>().view());
  const auto gradient = values_of<T>(want.grad);
  ASSERT_GT(want.loss, 0.1);
  on_ranks(world, [&](ProcessGroup& group) {
    for (const Layout& split : splits_of(rows.count(), world.size)) {
      SCOPED_TRACE("rows " + to_string(split));
      const auto first = offset(split, group.rank());
      const auto n = split[index(group.rank())];
      const auto got = loss(group, rows.part<T>(first, n).view());
      EXPECT_NEAR(got.loss, want.loss, tolerance * want.loss);
      EXPECT_EQ(got.grad.shape(), (Shape{n, rows.classes}));
      const double scale = options.grad_scale == GradScale::sum ? group.size() : 1;
      const auto part = values_of<T>(got.grad);
      for (std::size_t i = 0; i < part.size(); ++i)
        ASSERT_NEAR(part[i], scale * gradient[static_cast<std::size_t>(first * rows.classes) + i],
                    tolerance * scale);
      EXPECT_EQ(got.per_element.size(),
                options.reduction == Reduction::none ? static_cast<std::size_t>(n) : 0U);
      for (std::size_t i = 0; i < got.per_element.size(); ++i)
        EXPECT_EQ(got.per_element[i], want.per_element[static_cast<std::size_t>(first) + i]);
    }
  });
}

TEST_P(CrossEntropyOfRanks, IsThatOfOneProcessForAnySplit) {
  for (const auto reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
    SCOPED_TRACE(static_cast<int>(reduction));
    const CrossEntropy::Options several{.classes = 3,
                                        .weight = {0.1, 1, 5},
                                        .label_smoothing = 0.1,
                                        .reduction = reduction,
                                        .grad_scale = GradScale::mean};
    const CrossEntropy::Options one{.pos_weight = 7, .reduction = reduction};
    for (const auto& options : {several, one}) {
      expect_one_process<double>(GetParam(), options, 1e-12);
      // The value is computed from rounded logits, so only the gradient is rounded to floats.
      expect_one_process<float>(GetParam(), options, 1e-5);
    }
  }
}

TEST_P(CrossEntropyOfRanks, ARankWithoutRowsThatCountTakesPart) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const std::vector<double> logits{1, 2, 3, 4};
    const bool first = group.rank() == 0;
    const std::int64_t target = first ? 1 : losses::default_ignore_index;
    const std::vector<std::int64_t> targets{target, target};
    const auto got =
        CrossEntropy({.classes = 2})(group, {view(std::span(logits), {2, 2}), targets});
    EXPECT_NEAR(got.loss, std::log1p(std::exp(-1)), 1e-15);
    if (!first) {
      EXPECT_EQ(values_of(got.grad), (std::vector<double>{0, 0, 0, 0}));
    }
  });
}

TEST_P(CrossEntropyOfRanks, NothingToDivideByIsZero) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const std::vector<float> logits{1, 2, 3, 4};
    const std::vector<std::int64_t> ignored{losses::default_ignore_index,
                                            losses::default_ignore_index};
    const std::vector<std::int64_t> weightless{1, 1};
    const std::vector<std::int64_t> nothing;
    const auto expect_zero = [](const LossResult& got) {
      EXPECT_EQ(got.loss, 0);
      for (const double g : values_of<float>(got.grad)) EXPECT_EQ(g, 0);
    };
    const auto all = view(std::span(logits), {2, 2});
    for (const auto reduction : {Reduction::mean, Reduction::sum, Reduction::none})
      expect_zero(CrossEntropy({.classes = 2, .reduction = reduction})(group, {all, ignored}));
    expect_zero(CrossEntropy({.classes = 2, .weight = {1, 0}})(group, {all, weightless}));
    // With smoothing the row has a loss of its own, but its weight in the mean is 0.
    expect_zero(CrossEntropy({.classes = 2, .weight = {1, 0}, .label_smoothing = 0.1})(
        group, {all, weightless}));
    expect_zero(CrossEntropy()(group, {std::span(logits).first(2), ignored}));
    expect_zero(CrossEntropy()(group, {std::span(logits).first(0), nothing}));
  });
}

TEST_P(CrossEntropyOfRanks, AMistakeOfOneRankIsAnErrorOnAll) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const bool last = group.rank() == group.size() - 1;
    const auto expect_mistake = [&](std::int64_t classes, const std::string& text,
                                    const std::function<void(LossRows&)>& make) {
      LossRows rows = make_loss_rows(4, classes);
      if (last) make(rows);
      expect_error(last ? Errc::invalid_argument : Errc::mismatch, {"cross_entropy", text}, [&] {
        CrossEntropy({.classes = classes})(
            group, {{rows.logits.data(), DType::f64, {4, classes}}, rows.targets});
      });
    };
    expect_mistake(3, "targets[2] is 3", [](LossRows& r) { r.targets[2] = 3; });
    expect_mistake(3, "targets[0] is -1", [](LossRows& r) { r.targets[0] = -1; });
    expect_mistake(1, "targets[3] is 2", [](LossRows& r) { r.targets[3] = 2; });
    expect_mistake(1, "targets are i64 [3]", [](LossRows& r) { r.targets.pop_back(); });
    expect_mistake(3, "logits[1, 2] is inf", [](LossRows& r) { r.logits[5] = HUGE_VAL; });

    const LossRows rows = make_loss_rows(4, 3);
    if (group.size() > 1) {
      const auto expect_mismatch = [&](const std::string& one, const std::string& other,
                                       const CrossEntropy& loss) {
        expect_error(Errc::mismatch, {one, other}, [&] { loss(group, rows.all().view()); });
      };
      expect_mismatch("weight [1, 2, 3]", "weight [1, 2, 4]",
                      CrossEntropy({.classes = 3, .weight = {1, 2, last ? 4.0 : 3.0}}));
      expect_mismatch("label_smoothing 0,", "label_smoothing 0.5,",
                      CrossEntropy({.classes = 3, .label_smoothing = last ? 0.5 : 0}));
      expect_error(Errc::mismatch, {"pos_weight 2,", "pos_weight 2.5,"}, [&] {
        CrossEntropy({.pos_weight = last ? 2.5 : 2})(group, make_loss_rows(4, 1).all().view());
      });
      expect_error(Errc::mismatch, {"logits f32", "logits f64"}, [&] {
        const CrossEntropy loss({.classes = 3});
        last ? loss(group, rows.all<float>().view()) : loss(group, rows.all().view());
      });
    }
    CrossEntropy({.classes = 3})(group, rows.all().view());
  });
}

TEST(CrossEntropyAlone, TheGradientIsThatOfFiniteDifferences) {
  for (const auto reduction : {Reduction::mean, Reduction::sum, Reduction::none})
    for (const double smoothing : {0.0, 0.2}) {
      const CrossEntropy::Options several{.classes = 4,
                                          .weight = {0.5, 1, 2, 0},
                                          .label_smoothing = smoothing,
                                          .reduction = reduction};
      const CrossEntropy::Options one{
          .pos_weight = 3, .label_smoothing = smoothing, .reduction = reduction};
      for (const auto& options : {several, one}) {
        LossRows rows = make_loss_rows(12, options.classes);
        const CrossEntropy loss(options);
        const auto at = [&] { return loss(rows.all().view()); };
        const auto gradient = values_of(at().grad);
        constexpr double step = 1e-5;  // The error is step^2, plus 1e-16 / step of the value.
        for (std::size_t i = 0; i < rows.logits.size(); ++i)
          EXPECT_NEAR(gradient[i],
                      central_difference(rows.logits[i], step, [&] { return at().loss; }), 1e-8)
              << i;
      }
    }
}

// Two classes with logits 0 and z are one class with logit z.
TEST(CrossEntropyAlone, TwoClassesAreOneClassWithTheirDifference) {
  const std::vector<double> one{-800, -2, 0, 3, 40, 800};
  std::vector<double> two;
  for (const double z : one) two.insert(two.end(), {0, z});
  const std::vector<std::int64_t> targets{1, 0, 1, 0, 1, 1};
  const auto want = CrossEntropy(
      {.pos_weight = 2, .label_smoothing = 0.1, .reduction = Reduction::none})({one, targets});
  const auto got = CrossEntropy(
      {.classes = 2, .weight = {1, 2}, .label_smoothing = 0.1, .reduction = Reduction::none})(
      {view(std::span(two), {6, 2}), targets});
  EXPECT_NEAR(got.loss, want.loss, 1e-12 * want.loss);
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_NEAR(got.per_element[i], want.per_element[i], 1e-12 * want.per_element[i]);
    EXPECT_NEAR(values_of(got.grad)[2 * i + 1], values_of(want.grad)[i], 1e-12);
    EXPECT_NEAR(values_of(got.grad)[2 * i], -values_of(want.grad)[i], 1e-12);
  }
}

// exp(-800) is 0 in double, and so are much larger terms beside 1.
TEST(CrossEntropyAlone, WhatIsRightForSureKeepsItsSmallGradient) {
  const std::vector<double> logits{40, 0, 800, 0};
  const std::vector<std::int64_t> targets{0, 0};
  const auto got = CrossEntropy({.classes = 2, .reduction = Reduction::sum})(
      {view(std::span(logits), {2, 2}), targets});
  EXPECT_DOUBLE_EQ(values_of(got.grad)[0], -std::exp(-40));
  EXPECT_EQ(values_of(got.grad)[2], 0);
  EXPECT_TRUE(std::isfinite(got.loss));
}

TEST(CrossEntropyAlone, HalfTypesAndVectorsAreTaken) {
  const std::vector<float> logits{0.5F, 0.25F, -1, 2};
  const std::vector<std::int64_t> targets{1, 0, 1, 0};
  const auto want = CrossEntropy()({logits, view(std::span(targets), {4, 1})});
  std::vector<Float16> half;
  for (const float x : logits) half.emplace_back(x);
  const auto got = CrossEntropy()({half, targets});
  EXPECT_EQ(got.loss, want.loss);
  EXPECT_EQ(got.grad.dtype(), DType::f16);
  EXPECT_EQ(got.grad.shape(), Shape{4});
}

TEST(CrossEntropyAlone, WhatIsOutOfRangeIsRefused) {
  const auto refused = [](const std::string& text, const CrossEntropy::Options& options) {
    expect_error(Errc::invalid_argument, {"cross_entropy", text}, [&] { CrossEntropy{options}; });
  };
  refused("classes is 0", {.classes = 0});
  refused("label_smoothing is 1.5", {.label_smoothing = 1.5});
  refused("label_smoothing is nan", {.label_smoothing = std::nan("")});
  refused("pos_weight is -1", {.pos_weight = -1});
  refused("pos_weight is 2 for 3 classes", {.classes = 3, .pos_weight = 2});
  refused("weight is set, but classes is 1", {.weight = {1}});
  refused("2 weights for 3 classes", {.classes = 3, .weight = {1, 2}});
  refused("weight[1] is -1", {.classes = 2, .weight = {1, -1}});
  refused("weight[0] is inf", {.classes = 2, .weight = {HUGE_VAL, 1}});
  const std::vector<double> logits{1, 2};
  const std::vector<std::int32_t> narrow{0, 1};
  const std::vector<std::int64_t> targets{0, 1};
  expect_error(Errc::invalid_argument, {"targets are i32 [2]"}, [&] {
    CrossEntropy()({logits, narrow});
  });
  expect_error(Errc::invalid_argument, {"logits are i32"}, [&] {
    CrossEntropy()({narrow, targets});
  });
  expect_error(Errc::invalid_argument, {"logits are [2]", "[N, 2]"}, [&] {
    CrossEntropy({.classes = 2})({logits, targets});
  });
}

}  // namespace
}  // namespace tutti::test
