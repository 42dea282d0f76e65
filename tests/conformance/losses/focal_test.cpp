#include <tutti/losses/focal.hpp>

#include <cmath>
#include <functional>
#include <random>

#include "conformance/losses/loss_rows.hpp"
#include "support/call_loss.hpp"

namespace tutti::test {
namespace {

using losses::LossResult;
using losses::Reduction;
using losses::SigmoidFocal;
using losses::SoftmaxFocal;

struct Way {
  Reduction reduction;
  bool by_positives;
};
constexpr Way ways[] = {{Reduction::mean, false},
                        {Reduction::sum, false},
                        {Reduction::none, false},
                        {Reduction::mean, true}};

/// Rows of logits [N, C, 2], with a class each or with 0 or 1 for each element.
struct FocalRows {
  std::int64_t classes = 3;
  std::int64_t count = 0;
  std::vector<double> logits;
  std::vector<double> yes;
  std::vector<std::int64_t> targets;  // [N, 2]

  std::size_t width() const { return static_cast<std::size_t>(classes * 2); }
  Shape shape(std::int64_t n) const { return {n, classes, 2}; }
  std::span<const double> part_of(const std::vector<double>& all, std::int64_t first,
                                  std::int64_t n) const {
    return std::span(all).subspan(static_cast<std::size_t>(first) * width(),
                                  static_cast<std::size_t>(n) * width());
  }
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

LossResult softmax_of(const SoftmaxFocal& loss, ProcessGroup* group, const FocalRows& rows,
                      std::int64_t first, std::int64_t n) {
  const auto logits = rows.part_of(rows.logits, first, n);
  const auto targets =
      std::span(rows.targets)
          .subspan(static_cast<std::size_t>(first * 2), static_cast<std::size_t>(n * 2));
  return call_loss(loss, group, losses::Batch{view(logits, rows.shape(n)), view(targets, {n, 2})});
}

LossResult sigmoid_of(const SigmoidFocal& loss, ProcessGroup* group, const FocalRows& rows,
                      std::int64_t first, std::int64_t n) {
  return call_loss(loss, group,
                   losses::Batch{view(rows.part_of(rows.logits, first, n), rows.shape(n)),
                                 view(rows.part_of(rows.yes, first, n), rows.shape(n))});
}

std::span<const double> values(const Tensor& tensor) {
  return {static_cast<const double*>(tensor.data()),
          static_cast<std::size_t>(tensor.shape().numel())};
}

class FocalOfRanks : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, FocalOfRanks, testing::ValuesIn(worlds()), CaseName());

template <typename Call>
void expect_one_process(const World& world, const FocalRows& rows, double scale, const Call& call) {
  const LossResult want = call(nullptr, 0, rows.count);
  std::vector<Layout> splits;
  for (Layout layout : layouts(world.size)) {
    layout.back() += rows.count - total(layout);  // The same rows for any split.
    if (layout.back() >= 0) splits.push_back(layout);
  }
  ASSERT_FALSE(splits.empty());
  for (const Layout& split : splits) {
    on_ranks(world, [&](ProcessGroup& group) {
      SCOPED_TRACE("rows " + to_string(split));
      const auto first = offset(split, group.rank());
      const auto got = call(&group, first, split[index(group.rank())]);
      EXPECT_NEAR(got.loss, want.loss, 1e-12 * std::abs(want.loss));
      const auto part = values(got.grad);
      const auto all = values(want.grad).subspan(static_cast<std::size_t>(first) * rows.width());
      const double by = scale == 0 ? group.size() : scale;
      for (std::size_t i = 0; i < part.size(); ++i) ASSERT_NEAR(part[i], by * all[i], 1e-12);
    });
  }
}

TEST_P(FocalOfRanks, IsThatOfOneProcessForAnySplit) {
  const FocalRows rows = make_focal_rows(40);
  for (const auto& [reduction, by_positives] : ways) {
    SCOPED_TRACE(std::to_string(static_cast<int>(reduction)) + (by_positives ? " positives" : ""));
    const SoftmaxFocal softmax(
        {.alpha = {0.2, 1, 3}, .reduction = reduction, .normalize_by_positives = by_positives});
    expect_one_process(GetParam(), rows, 0,
                       [&](ProcessGroup* group, std::int64_t first, std::int64_t n) {
                         return softmax_of(softmax, group, rows, first, n);
                       });
    const SigmoidFocal sigmoid({.reduction = reduction,
                                .normalize_by_positives = by_positives,
                                .grad_scale = GradScale::mean});
    expect_one_process(GetParam(), rows, 1,
                       [&](ProcessGroup* group, std::int64_t first, std::int64_t n) {
                         return sigmoid_of(sigmoid, group, rows, first, n);
                       });
  }
}

TEST_P(FocalOfRanks, AMistakeOfOneRankIsAnErrorOnAll) {
  const FocalRows rows = make_focal_rows(4);
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const bool last = group.rank() == group.size() - 1;
    FocalRows mine = rows;
    if (last) mine.targets[3] = 3;
    expect_error(last ? Errc::invalid_argument : Errc::mismatch,
                 {"softmax_focal", "targets[3] is 3"},
                 [&] { softmax_of(SoftmaxFocal(), &group, mine, 0, 4); });
    mine = rows;
    if (last) mine.logits[13] = std::nan("");
    expect_error(last ? Errc::invalid_argument : Errc::mismatch,
                 {"sigmoid_focal", "logits[2, 0, 1] is nan"},
                 [&] { sigmoid_of(SigmoidFocal(), &group, mine, 0, 4); });
    if (group.size() > 1)
      expect_error(Errc::mismatch, {"gamma 2", "gamma 3"}, [&] {
        softmax_of(SoftmaxFocal({.gamma = last ? 3.0 : 2.0}), &group, rows, 0, 4);
      });
    if (group.size() >
        1) {  // Also differences that affect only a part of the result: shapes, dtypes, scales.
      const std::vector<float> narrow(last ? 8 : 12);
      const std::vector<std::int64_t> classes(4);
      expect_error(Errc::mismatch, {"[*, 2]", "[*, 3]"}, [&] {
        SoftmaxFocal()(group, {view(std::span(narrow), {4, last ? 2 : 3}), classes});
      });
      const std::vector<double> wide(4);
      const auto logits = last ? ConstTensorView(wide) : view(std::span(narrow).first(4), {4});
      expect_error(Errc::mismatch, {"logits f32", "logits f64"}, [&] {
        SigmoidFocal()(group, {logits, logits});
      });
      expect_error(Errc::mismatch, {"grad_scale sum", "grad_scale mean"}, [&] {
        sigmoid_of(SigmoidFocal({.grad_scale = last ? GradScale::mean : GradScale::sum}), &group,
                   rows, 0, 4);
      });
      expect_error(
          Errc::mismatch, {"normalize_by_positives true", "normalize_by_positives false"},
          [&] { sigmoid_of(SigmoidFocal({.normalize_by_positives = last}), &group, rows, 0, 4); });
    }
    softmax_of(SoftmaxFocal(), &group, rows, 0, 4);
  });
}

TEST_P(FocalOfRanks, TheScaleChoosesTheFactorOfTheGradient) {
  const FocalRows rows = make_focal_rows(6);
  const auto want = sigmoid_of(SigmoidFocal(), nullptr, rows, 0, 6);
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const auto n = group.rank() == 0 ? rows.count : 0;
    for (const auto scale : {GradScale::sum, GradScale::mean, GradScale::local_slice}) {
      const auto got = sigmoid_of(SigmoidFocal({.grad_scale = scale}), &group, rows, 0, n);
      const double factor = scale == GradScale::sum ? group.size() : 1;
      const auto part = values(got.grad);
      for (std::size_t i = 0; i < part.size(); ++i)
        ASSERT_NEAR(part[i], factor * values(want.grad)[i], 1e-12);
    }
  });
}

// Computed directly by the formulas of the headers.

double softmax_by_definition(const FocalRows& rows, const SoftmaxFocal::Options& o) {
  double sum = 0;
  double counted = 0;
  double positive = 0;
  for (std::int64_t i = 0; i < rows.count * 2; ++i) {
    const auto y = rows.targets[static_cast<std::size_t>(i)];
    if (y == o.ignore_index) continue;
    const auto z = [&](std::int64_t c) {
      return rows.logits[static_cast<std::size_t>((i / 2 * rows.classes + c) * 2 + i % 2)];
    };
    double normaliser = 0;
    for (std::int64_t c = 0; c < rows.classes; ++c) normaliser += std::exp(z(c));
    double smooth = 0;
    for (std::int64_t c = 0; c < rows.classes; ++c)
      smooth += std::log(std::exp(z(c)) / normaliser) / static_cast<double>(rows.classes);
    const double p = std::exp(z(y)) / normaliser;
    const double ce = -(1 - o.label_smoothing) * std::log(p) - o.label_smoothing * smooth;
    sum += (o.alpha.empty() ? 1 : o.alpha[static_cast<std::size_t>(y)]) * std::pow(1 - p, o.gamma) *
           ce;
    counted += 1;
    positive += y != o.background ? 1 : 0;
  }
  return o.reduction != Reduction::mean ? sum
                                        : sum / (o.normalize_by_positives ? positive : counted);
}

double sigmoid_by_definition(const FocalRows& rows, const SigmoidFocal::Options& o) {
  double sum = 0;
  double positive = 0;
  for (std::size_t i = 0; i < rows.logits.size(); ++i) {
    const double p = 1 / (1 + std::exp(-rows.logits[i]));
    const double y = rows.yes[i];
    const double p_t = p * y + (1 - p) * (1 - y);
    const double weight = o.alpha < 0 ? 1 : o.alpha * y + (1 - o.alpha) * (1 - y);
    sum += weight * std::pow(1 - p_t, o.gamma) * -(y * std::log(p) + (1 - y) * std::log(1 - p));
    positive += y > 0 ? 1 : 0;
  }
  const auto all = static_cast<double>(rows.logits.size());
  return o.reduction != Reduction::mean ? sum : sum / (o.normalize_by_positives ? positive : all);
}

/// The value, and the gradient against finite differences.
void expect_derivative(FocalRows rows, double want,
                       const std::function<LossResult(const FocalRows&)>& loss) {
  const auto got = loss(rows);
  EXPECT_NEAR(got.loss, want, 1e-12 * std::abs(want));
  constexpr double step = 1e-5;
  for (std::size_t i = 0; i < rows.logits.size(); ++i)
    ASSERT_NEAR(values(got.grad)[i],
                central_difference(rows.logits[i], step, [&] { return loss(rows).loss; }),
                1e-8 * (1 + std::abs(want)))
        << i;
}

TEST(FocalAlone, IsWhatItsDefinitionSaysAndSoIsItsGradient) {
  const FocalRows rows = make_focal_rows(12);
  for (const auto& [reduction, by_positives] : ways)
    for (const double gamma : {0.0, 0.5, 1.0, 2.0, 5.0}) {
      for (const double smoothing : {0.0, 0.1}) {
        const SoftmaxFocal::Options options{.alpha = {0.5, 1, 2},
                                            .gamma = gamma,
                                            .label_smoothing = smoothing,
                                            .background = 1,
                                            .reduction = reduction,
                                            .normalize_by_positives = by_positives};
        expect_derivative(rows, softmax_by_definition(rows, options), [&](const FocalRows& r) {
          return softmax_of(SoftmaxFocal(options), nullptr, r, 0, r.count);
        });
      }
      for (const double alpha : {0.25, -1.0}) {
        const SigmoidFocal::Options options{.alpha = alpha,
                                            .gamma = gamma,
                                            .reduction = reduction,
                                            .normalize_by_positives = by_positives};
        expect_derivative(rows, sigmoid_by_definition(rows, options), [&](const FocalRows& r) {
          return sigmoid_of(SigmoidFocal(options), nullptr, r, 0, r.count);
        });
      }
    }
}

TEST(FocalAlone, NoneLeavesRowsAndElementsApart) {
  const FocalRows rows = make_focal_rows(6);
  const auto softmax =
      softmax_of(SoftmaxFocal({.reduction = Reduction::none}), nullptr, rows, 0, 6);
  ASSERT_EQ(softmax.per_element.size(), rows.targets.size());
  double sum = 0;
  for (std::size_t i = 0; i < rows.targets.size(); ++i) {
    if (rows.targets[i] == losses::default_ignore_index) {
      EXPECT_EQ(softmax.per_element[i], 0);
    }
    sum += softmax.per_element[i];
  }
  EXPECT_DOUBLE_EQ(sum, softmax.loss);
  EXPECT_EQ(sigmoid_of(SigmoidFocal({.reduction = Reduction::none}), nullptr, rows, 0, 6)
                .per_element.size(),
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
      for (const double g : values(result->grad)) EXPECT_TRUE(std::isfinite(g));
    }
    EXPECT_EQ(values(sigmoid.grad)[0], 0);
    EXPECT_EQ(values(softmax.grad)[2], 0) << "an ignored row";
  }
}

TEST(FocalAlone, NothingThatCountsIsZero) {
  const std::vector<float> logits{1, 2};
  const std::vector<std::int64_t> ignored{losses::default_ignore_index};
  const auto got = SoftmaxFocal()({view(std::span(logits), {1, 2}), ignored});
  EXPECT_EQ(got.loss, 0);
  EXPECT_EQ(SigmoidFocal()({std::span<const float>(), std::span<const float>()}).loss, 0);
  // Without positives the divisor is 1.
  const std::vector<float> negatives{0, 0};
  const auto by_positives =
      SigmoidFocal({.normalize_by_positives = true})({std::span(logits), negatives});
  EXPECT_EQ(by_positives.loss,
            SigmoidFocal({.reduction = Reduction::sum})({std::span(logits), negatives}).loss);
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
  const std::vector<double> targets{0, 3};
  const std::vector<std::int64_t> classes{0, 1};
  expect_error(Errc::invalid_argument, {"targets[1] is 3"}, [&] {
    SigmoidFocal()({logits, targets});
  });
  expect_error(Errc::invalid_argument, {"targets are i64"}, [&] {
    SigmoidFocal()({logits, classes});
  });
  expect_error(Errc::invalid_argument, {"[N, C, *]"}, [&] { SoftmaxFocal()({logits, classes}); });
  const std::vector<std::int64_t> one{0};
  expect_error(Errc::invalid_argument, {"alpha has 3 weights", "2 classes"}, [&] {
    SoftmaxFocal({.alpha = {1, 2, 3}})({view(std::span(logits), {1, 2}), one});
  });
}

}  // namespace
}  // namespace tutti::test
