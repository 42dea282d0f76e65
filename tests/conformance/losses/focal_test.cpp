#include <tutti/losses/focal.hpp>

#include <cmath>
#include <random>

#include "conformance/losses/loss_rows.hpp"

// Tests of the focal losses alone: every_loss_test.cpp tests what all losses have, and
// tests/unit/losses/ranking_reference_test.cpp the numbers.

namespace tutti::test {
namespace {

using losses::LossResult;
using losses::Reduction;
using losses::SigmoidFocal;
using losses::SoftmaxFocal;

/// Rows of logits [N, C, 2], with a class each or with 0 or 1 for each element.
struct FocalRows {
  std::int64_t classes = 3;
  std::int64_t count = 0;
  std::vector<double> logits;
  std::vector<double> yes;
  std::vector<std::int64_t> targets;  // [N, 2]

  Shape shape(std::int64_t n) const { return {n, classes, 2}; }
};

FocalRows make_focal_rows(std::int64_t count, unsigned seed = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> score(0, 3);
  FocalRows rows;
  rows.count = count;
  for (std::int64_t i = 0; i < count * rows.classes * 2; ++i) {
    rows.logits.push_back(score(random));
    rows.yes.push_back(random() % 4 == 0 ? 1 : 0);
  }
  for (std::int64_t i = 0; i < count * 2; ++i)
    rows.targets.push_back(random() % 5 == 0 ? losses::default_ignore_index
                                             : static_cast<std::int64_t>(random() % 3));
  return rows;
}

LossResult softmax_of(const SoftmaxFocal& loss, const FocalRows& rows) {
  return loss({view(std::span(rows.logits), rows.shape(rows.count)),
               view(std::span(rows.targets), {rows.count, 2})});
}

LossResult sigmoid_of(const SigmoidFocal& loss, const FocalRows& rows) {
  const Shape shape = rows.shape(rows.count);
  return loss({view(std::span(rows.logits), shape), view(std::span(rows.yes), shape)});
}

TEST(FocalAlone, InnerDimensionsOfTheLogitsAreMoreRows) {
  const FocalRows rows = make_focal_rows(12);
  std::vector<double> flat;  // [N, 2, C]
  const auto at = [&](std::size_t row, std::size_t c) { return (row / 2 * 3 + c) * 2 + row % 2; };
  for (std::size_t row = 0; row < rows.targets.size(); ++row)
    for (std::size_t c = 0; c < 3; ++c) flat.push_back(rows.logits[at(row, c)]);
  const SoftmaxFocal loss({.alpha = {0.5, 1, 2},
                           .label_smoothing = 0.1,
                           .background = 1,
                           .normalize_by_positives = true});
  const auto want = loss({view(std::span(flat), {24, 3}), rows.targets});
  const auto got = softmax_of(loss, rows);
  EXPECT_EQ(got.loss, want.loss);
  for (std::size_t row = 0; row < rows.targets.size(); ++row)
    for (std::size_t c = 0; c < 3; ++c)
      EXPECT_EQ(values_of(got.grad)[at(row, c)], values_of(want.grad)[row * 3 + c]);
}

TEST(FocalAlone, NoneLeavesRowsAndElementsApart) {
  const FocalRows rows = make_focal_rows(6);
  const auto softmax = softmax_of(SoftmaxFocal({.reduction = Reduction::none}), rows);
  ASSERT_EQ(softmax.per_element.size(), rows.targets.size());
  double sum = 0;
  for (std::size_t i = 0; i < rows.targets.size(); ++i) {
    if (rows.targets[i] == losses::default_ignore_index) {
      EXPECT_EQ(softmax.per_element[i], 0);
    }
    sum += softmax.per_element[i];
  }
  EXPECT_DOUBLE_EQ(sum, softmax.loss);
  EXPECT_EQ(sigmoid_of(SigmoidFocal({.reduction = Reduction::none}), rows).per_element.size(),
            rows.logits.size());
}

// (1 - p)^(gamma - 1) is infinite for p = 1 and must not be a factor there.
TEST(FocalAlone, WhatIsRightForSureHasNoGradient) {
  for (const double gamma : {0.0, 0.25, 0.5, 1.0, 2.0}) {
    const std::vector<double> logits{800, -800, 40, -40, 0, 1};
    const std::vector<double> yes{1, 0, 1, 0, 1, 0};
    const auto sigmoid = SigmoidFocal({.gamma = gamma})({logits, yes});
    const std::vector<std::int64_t> targets{0, losses::default_ignore_index, 1};
    const auto softmax = SoftmaxFocal({.gamma = gamma})({view(std::span(logits), {3, 2}), targets});
    for (const auto* result : {&sigmoid, &softmax}) {
      EXPECT_TRUE(std::isfinite(result->loss));
      for (const double g : values_of(result->grad)) EXPECT_TRUE(std::isfinite(g));
    }
    EXPECT_EQ(values_of(sigmoid.grad)[0], 0);
    EXPECT_EQ(values_of(softmax.grad)[2], 0) << "an ignored row";
  }
}

TEST(FocalAlone, WithoutPositivesTheDivisorIsOne) {
  const std::vector<float> logits{1, 2};
  const std::vector<float> negatives{0, 0};
  EXPECT_EQ(SigmoidFocal({.normalize_by_positives = true})({logits, negatives}).loss,
            SigmoidFocal({.reduction = Reduction::sum})({logits, negatives}).loss);
}

// A weight below 1 is a divisor, too: only a sum of 0 is replaced.
TEST(FocalAlone, SmallWeightsOfPositivesDivide) {
  const std::vector<double> logits{1, 2};
  const std::vector<double> yes{1, 0};
  const std::vector<double> weights{0.25, 0};
  const SigmoidFocal loss({.normalize_by_positives = true});
  EXPECT_NEAR(loss({.logits = logits, .targets = yes, .weight = weights}).loss,
              SigmoidFocal({.reduction = Reduction::none})({logits, yes}).per_element[0], 1e-15);
}

TEST(FocalAlone, WeightsOfAnotherShapeAreRefused) {
  const FocalRows rows = make_focal_rows(2);
  const std::vector<double> many(12, 1);
  const auto weights = [&](const Shape& shape) {
    return view(std::span(many).first(static_cast<std::size_t>(shape.numel())), shape);
  };
  const auto logits = view(std::span(rows.logits), rows.shape(2));
  for (const Shape& shape : {Shape{2}, Shape{1, 3, 2}, Shape{2, 3}, Shape{2, 2, 1}})
    expect_error(Errc::invalid_argument, {"sigmoid_focal", "weights are " + to_string(shape)}, [&] {
      SigmoidFocal()({.logits = logits,
                      .targets = view(std::span(rows.yes), rows.shape(2)),
                      .weight = weights(shape)});
    });
  expect_error(Errc::invalid_argument, {"softmax_focal", "weights are [2, 1]", "[2, 2]"}, [&] {
    SoftmaxFocal()({.logits = logits,
                    .targets = view(std::span(rows.targets), {2, 2}),
                    .weight = weights({2, 1})});
  });
}

TEST(FocalAlone, WhatIsOutOfRangeIsRefused) {
  expect_error(Errc::invalid_argument, {"alpha is 2"}, [] { SigmoidFocal({.alpha = 2}); });
  expect_error(Errc::invalid_argument, {"gamma is -1"}, [] { SigmoidFocal({.gamma = -1}); });
  expect_error(Errc::invalid_argument, {"gamma is nan"},
               [] { SoftmaxFocal({.gamma = std::nan("")}); });
  expect_error(Errc::invalid_argument, {"label_smoothing is 1.5"},
               [] { SoftmaxFocal({.label_smoothing = 1.5}); });
  expect_error(Errc::invalid_argument, {"alpha[1] is -1"}, [] {
    SoftmaxFocal({.alpha = {1, -1}});
  });
  for (const auto reduction : {Reduction::sum, Reduction::none}) {
    const auto text = reduction == Reduction::sum ? "reduction is sum; use Reduction::mean"
                                                  : "reduction is none; use Reduction::mean";
    expect_error(Errc::invalid_argument, {"sigmoid_focal: normalize_by_positives", text},
                 [&] { SigmoidFocal({.reduction = reduction, .normalize_by_positives = true}); });
    expect_error(Errc::invalid_argument, {"softmax_focal: normalize_by_positives", text},
                 [&] { SoftmaxFocal({.reduction = reduction, .normalize_by_positives = true}); });
  }
  const std::vector<double> logits{1, 2};
  const std::vector<std::int64_t> classes{0, 1};
  expect_error(Errc::invalid_argument, {"[N, C, *]"}, [&] { SoftmaxFocal()({logits, classes}); });
  const std::vector<std::int64_t> one{0};
  expect_error(Errc::invalid_argument, {"alpha has 3 weights", "2 classes"}, [&] {
    SoftmaxFocal({.alpha = {1, 2, 3}})({view(std::span(logits), {1, 2}), one});
  });
}

}  // namespace
}  // namespace tutti::test
