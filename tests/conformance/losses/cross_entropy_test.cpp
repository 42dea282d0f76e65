#include <tutti/losses/cross_entropy.hpp>

#include <cmath>

#include "conformance/losses/loss_rows.hpp"

// Tests of CrossEntropy alone: every_loss_test.cpp tests what all losses have, and
// tests/unit/losses/cross_entropy_reference_test.cpp the numbers.

namespace tutti::test {
namespace {

using losses::CrossEntropy;
using losses::Reduction;

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

// With smoothing the row has a loss, but its weight in the mean is 0.
TEST(CrossEntropyAlone, AClassWithoutWeightIsNothingToDivideBy) {
  const std::vector<double> logits{1, 2, 3, 4};
  const std::vector<std::int64_t> targets{1, 1};
  for (const double smoothing : {0.0, 0.1}) {
    const auto got = CrossEntropy({.classes = 2, .weight = {1, 0}, .label_smoothing = smoothing})(
        {view(std::span(logits), {2, 2}), targets});
    EXPECT_EQ(got.loss, 0);
    EXPECT_EQ(values_of(got.grad), std::vector<double>(4));
  }
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
  const std::vector<std::int64_t> targets{0, 1};
  expect_error(Errc::invalid_argument, {"logits are [2]", "[N, 2]"}, [&] {
    CrossEntropy({.classes = 2})({logits, targets});
  });
}

}  // namespace
}  // namespace tutti::test
