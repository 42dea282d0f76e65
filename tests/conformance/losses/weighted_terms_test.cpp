#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <random>

#include <tutti/losses/cross_entropy.hpp>
#include <tutti/losses/focal.hpp>
#include <tutti/losses/smooth_ap.hpp>
#include <tutti/losses/warm_up.hpp>

#include "conformance/losses/loss_rows.hpp"
#include "support/call_loss.hpp"

// Weights in losses that are sums of terms: against the terms without weights, and for any split
// over the ranks.

namespace tutti::test {
namespace {

using losses::CrossEntropy;
using losses::LossResult;
using losses::Reduction;
using losses::SigmoidFocal;
using losses::SoftmaxFocal;

/// Rows [N, 3, 2] of logits with weights of the elements and of the rows, [N, 2] and [N].
struct WeightedTerms {
  static constexpr std::int64_t classes = 3;
  std::int64_t count = 0;
  std::vector<double> logits, yes, of_elements, of_targets;
  std::vector<std::int64_t> targets;

  explicit WeightedTerms(std::int64_t n) : count(n) {
    std::mt19937_64 random(4);
    std::normal_distribution<double> score(0, 3);
    const auto weight = [&] {  // Some are 0.
      return random() % 5 == 0 ? 0.0 : std::abs(score(random));
    };
    for (std::int64_t i = 0; i < n * 2 * classes; ++i) {
      logits.push_back(score(random));
      yes.push_back(random() % 4 == 0 ? 1 : 0);
      of_elements.push_back(weight());
    }
    for (std::int64_t i = 0; i < n * 2; ++i) {
      of_targets.push_back(weight());
      targets.push_back(random() % 5 == 0 ? losses::default_ignore_index
                                          : static_cast<std::int64_t>(random() % 3));
    }
  }

  /// The rows [first, first + n) of an array of `width` numbers a row.
  template <typename T>
  static ConstTensorView part(const std::vector<T>& all, const Shape& row, std::int64_t first,
                              std::int64_t n) {
    const auto width = row.numel();
    return view(std::span(all).subspan(static_cast<std::size_t>(first * width),
                                       static_cast<std::size_t>(n * width)),
                row.with_rows(n));
  }
};

/// A loss, with the terms that weights multiply.
struct TermLoss {
  std::string name;
  /// Calls the loss for rows [first, first + n).
  std::function<LossResult(ProcessGroup*, Reduction, bool by_positives, bool weighted,
                           std::int64_t first, std::int64_t n)>
      call;
  std::vector<double> weights;    ///< Of each term.
  std::vector<double> divisors;   ///< Of each term without weights in the mean.
  std::vector<double> positives;  ///< The same with normalize_by_positives.
  std::function<std::size_t(std::size_t logit)> term_of;
  bool has_by_positives = true;
};

TermLoss sigmoid_terms(const WeightedTerms& rows, bool of_rows) {
  TermLoss loss{of_rows ? "sigmoid_focal, weights of rows" : "sigmoid_focal",
                [&rows, of_rows](ProcessGroup* group, Reduction reduction, bool by_positives,
                                 bool weighted, std::int64_t first, std::int64_t n) {
                  const SigmoidFocal focal({.reduction = reduction,
                                            .normalize_by_positives = by_positives,
                                            .grad_scale = GradScale::mean});
                  losses::Batch batch{rows.part(rows.logits, {1, 3, 2}, first, n),
                                      rows.part(rows.yes, {1, 3, 2}, first, n)};
                  if (weighted)
                    batch.weight = of_rows ? rows.part(rows.of_targets, {1, 1, 1}, first, n)
                                           : rows.part(rows.of_elements, {1, 3, 2}, first, n);
                  return call_loss(focal, group, batch);
                },
                {},
                std::vector<double>(rows.yes.size(), 1),
                rows.yes,
                [](std::size_t logit) { return logit; }};
  for (std::size_t i = 0; i < rows.yes.size(); ++i)
    loss.weights.push_back(of_rows ? rows.of_targets[i / 6] : rows.of_elements[i]);
  return loss;
}

TermLoss softmax_terms(const WeightedTerms& rows) {
  TermLoss loss{"softmax_focal",
                [&rows](ProcessGroup* group, Reduction reduction, bool by_positives, bool weighted,
                        std::int64_t first, std::int64_t n) {
                  const SoftmaxFocal focal({.alpha = {0.3, 1, 2},
                                            .label_smoothing = 0.1,
                                            .reduction = reduction,
                                            .normalize_by_positives = by_positives,
                                            .grad_scale = GradScale::mean});
                  losses::Batch batch{rows.part(rows.logits, {1, 3, 2}, first, n),
                                      rows.part(rows.targets, {1, 2}, first, n)};
                  if (weighted) batch.weight = rows.part(rows.of_targets, {1, 2}, first, n);
                  return call_loss(focal, group, batch);
                },
                rows.of_targets,
                {},
                {},
                [](std::size_t logit) { return logit / 6 * 2 + logit % 2; }};
  for (const auto target : rows.targets) {
    loss.divisors.push_back(target != losses::default_ignore_index ? 1 : 0);
    loss.positives.push_back(target > 0 ? 1 : 0);
  }
  return loss;
}

/// Of several classes, with weights, or of one.
TermLoss entropy_terms(const WeightedTerms& rows, std::int64_t classes) {
  TermLoss loss{"cross_entropy of " + std::to_string(classes),
                [&rows, classes](ProcessGroup* group, Reduction reduction, bool, bool weighted,
                                 std::int64_t first, std::int64_t n) {
                  CrossEntropy::Options options{.classes = classes,
                                                .label_smoothing = 0.1,
                                                .reduction = reduction,
                                                .grad_scale = GradScale::mean};
                  if (classes > 1) options.weight = {0.5, 3, 0};
                  if (classes == 1) options.pos_weight = 4;
                  losses::Batch batch{rows.part(rows.logits, {1, classes}, first, n),
                                      rows.part(rows.targets, Shape::vector(1), first, n)};
                  if (weighted)
                    batch.weight = rows.part(rows.of_targets, Shape::vector(1), first, n);
                  return call_loss(CrossEntropy(options), group, batch);
                },
                rows.of_targets,
                {},
                {},
                [classes](std::size_t logit) { return logit / static_cast<std::size_t>(classes); }};
  constexpr double of_classes[] = {0.5, 3, 0};
  for (const auto target : rows.targets)
    loss.divisors.push_back(target == losses::default_ignore_index ? 0
                            : classes == 1                         ? 1
                                           : of_classes[static_cast<std::size_t>(target)]);
  loss.weights.resize(static_cast<std::size_t>(rows.count));
  loss.divisors.resize(static_cast<std::size_t>(rows.count));
  loss.has_by_positives = false;
  return loss;
}

struct WeightedTermsRows {
  WeightedTerms focal{30};
  WeightedTerms entropy{30};
  WeightedTermsRows() {
    for (auto& target : entropy.targets)
      if (target == 2) target = 1;  // Also for one class.
  }
  std::vector<TermLoss> losses() const {
    return {sigmoid_terms(focal, false), sigmoid_terms(focal, true), softmax_terms(focal),
            entropy_terms(entropy, 3), entropy_terms(entropy, 1)};
  }
};

struct TermWay {
  Reduction reduction;
  bool by_positives;
};
constexpr TermWay term_ways[] = {{Reduction::mean, false},
                                 {Reduction::sum, false},
                                 {Reduction::none, false},
                                 {Reduction::mean, true}};

double sum_of_products(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b.at(i);
  return sum;
}

TEST(WeightedTermsAlone, TermsAndDivisorsAreMultiplied) {
  const WeightedTermsRows rows;
  for (const auto& loss : rows.losses())
    for (const auto& [reduction, by_positives] : term_ways) {
      if (by_positives && !loss.has_by_positives) continue;
      SCOPED_TRACE(loss.name + ", reduction " + std::to_string(static_cast<int>(reduction)));
      const auto terms = loss.call(nullptr, Reduction::none, false, false, 0, 30);
      const auto got = loss.call(nullptr, reduction, by_positives, true, 0, 30);
      const double sum = sum_of_products(loss.weights, terms.per_element);
      const double divisor =
          reduction != Reduction::mean
              ? 1
              : sum_of_products(loss.weights, by_positives ? loss.positives : loss.divisors);
      EXPECT_NEAR(got.loss, sum / divisor, 1e-13 * sum);
      const auto slopes = values_of(terms.grad);
      const auto gradient = values_of(got.grad);
      for (std::size_t i = 0; i < slopes.size(); ++i)
        ASSERT_NEAR(gradient[i], loss.weights[loss.term_of(i)] * slopes[i] / divisor, 1e-13) << i;
      for (std::size_t i = 0; i < got.per_element.size(); ++i)
        ASSERT_NEAR(got.per_element[i], loss.weights[i] * terms.per_element[i],
                    1e-13 * got.per_element[i]);
    }
}

TEST(WeightedTermsAlone, WeightsOfOneChangeNoBit) {
  WeightedTermsRows rows;
  for (auto* of : {&rows.focal, &rows.entropy}) {
    std::ranges::fill(of->of_elements, 1);
    std::ranges::fill(of->of_targets, 1);
  }
  for (const auto& loss : rows.losses())
    for (const auto& [reduction, by_positives] : term_ways) {
      const auto want = loss.call(nullptr, reduction, by_positives, false, 0, 30);
      const auto got = loss.call(nullptr, reduction, by_positives, true, 0, 30);
      EXPECT_EQ(got.loss, want.loss) << loss.name;
      EXPECT_EQ(values_of(got.grad), values_of(want.grad)) << loss.name;
      EXPECT_EQ(got.per_element, want.per_element) << loss.name;
    }
}

TEST(WeightedTermsAlone, WeightsOfZeroGiveNoLossAndNoWeightOfPositivesDividesByOne) {
  WeightedTermsRows rows;
  auto& focal = rows.focal;
  for (std::size_t i = 0; i < focal.yes.size(); ++i)
    if (focal.yes[i] > 0) focal.of_elements[i] = 0;
  for (std::size_t i = 0; i < focal.targets.size(); ++i)
    if (focal.targets[i] > 0) focal.of_targets[i] = 0;
  for (const auto& loss : {sigmoid_terms(focal, false), softmax_terms(focal)}) {
    const auto sum = loss.call(nullptr, Reduction::sum, false, true, 0, 30);
    const auto mean = loss.call(nullptr, Reduction::mean, true, true, 0, 30);
    EXPECT_GT(sum.loss, 0);
    EXPECT_EQ(mean.loss, sum.loss) << loss.name;
    EXPECT_EQ(values_of(mean.grad), values_of(sum.grad)) << loss.name;
  }
  for (auto* of : {&rows.focal, &rows.entropy}) {
    std::ranges::fill(of->of_elements, 0);
    std::ranges::fill(of->of_targets, 0);
  }
  for (const auto& loss : rows.losses())
    for (const auto& [reduction, by_positives] : term_ways) {
      const auto got = loss.call(nullptr, reduction, by_positives, true, 0, 30);
      EXPECT_EQ(got.loss, 0) << loss.name;
      for (const double g : values_of(got.grad)) EXPECT_EQ(g, 0) << loss.name;
    }
}

// A weight below 1 is a divisor, too: only a sum of 0 is replaced.
TEST(WeightedTermsAlone, SmallWeightsOfPositivesDivide) {
  const std::vector<double> logits{1, 2};
  const std::vector<double> yes{1, 0};
  const std::vector<double> weights{0.25, 0};
  const SigmoidFocal loss({.normalize_by_positives = true});
  EXPECT_NEAR(loss({.logits = logits, .targets = yes, .weight = weights}).loss,
              SigmoidFocal({.reduction = Reduction::none})({logits, yes}).per_element[0], 1e-15);
}

TEST(WeightedTermsAlone, WeightsHaveAnyFloatingType) {
  const std::vector<double> logits{1, 2, 3};
  const std::vector<std::int64_t> targets{1, 0, 1};
  const std::vector<double> wide{0.5, 2, 0.25};
  const std::vector<float> narrow(wide.begin(), wide.end());
  std::vector<Float16> half;
  for (const float w : narrow) half.emplace_back(w);
  losses::Batch batch{.logits = logits, .targets = targets, .weight = wide};
  const auto want = CrossEntropy()(batch);
  for (const ConstTensorView& weight : {ConstTensorView(narrow), ConstTensorView(half)}) {
    batch.weight = weight;
    EXPECT_EQ(CrossEntropy()(batch).loss, want.loss);
  }
}

class WeightedTermsOf : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, WeightedTermsOf, testing::ValuesIn(worlds()), CaseName());

TEST_P(WeightedTermsOf, AnySplitIsOneProcess) {
  const WeightedTermsRows rows;
  for (const auto& loss : rows.losses())
    for (const auto& [reduction, by_positives] : term_ways) {
      if (by_positives && !loss.has_by_positives) continue;
      SCOPED_TRACE(loss.name);
      const auto want = loss.call(nullptr, reduction, by_positives, true, 0, 30);
      const auto gradient = values_of(want.grad);
      const auto width = gradient.size() / 30;
      on_ranks(GetParam(), [&, &loss = loss, &reduction = reduction,
                            &by_positives = by_positives](ProcessGroup& group) {
        for (const Layout& split : splits_of(30, group.size())) {
          const auto first = offset(split, group.rank());
          const auto got =
              loss.call(&group, reduction, by_positives, true, first, split[index(group.rank())]);
          EXPECT_NEAR(got.loss, want.loss, 1e-12 * want.loss);
          const auto part = values_of(got.grad);
          for (std::size_t i = 0; i < part.size(); ++i)
            ASSERT_NEAR(part[i], gradient[static_cast<std::size_t>(first) * width + i], 1e-12);
        }
      });
    }
}

TEST_P(WeightedTermsOf, AMistakeOfOneRankIsAnErrorOnAll) {
  const WeightedTermsRows good;
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const bool last = group.rank() == group.size() - 1;
    WeightedTermsRows mine;
    for (auto* of : {&mine.focal, &mine.entropy}) {
      if (last) of->of_elements[5] = of->of_targets[5] = -2;
    }
    for (const auto& loss : mine.losses())
      expect_error(last ? Errc::invalid_argument : Errc::mismatch,
                   {loss.name.substr(0, loss.name.find_first_of(", ")), "is -2"},
                   [&] { loss.call(&group, Reduction::mean, false, true, 0, 30); });
    if (group.size() > 1)
      for (const auto& loss : good.losses())
        expect_error(Errc::mismatch, {", with weights", "rank " + std::to_string(group.size() - 1)},
                     [&] { loss.call(&group, Reduction::mean, false, !last, 0, last ? 0 : 30); });
    for (const auto& loss : good.losses())
      loss.call(&group, Reduction::mean, false, true, 0, last ? 0 : 30);
  });
}

// Both losses of a WarmUp get the weights, in every phase.
TEST_P(WeightedTermsOf, WarmUpMixesTwoLossesWithWeights) {
  const WeightedTerms rows(30);
  const CrossEntropy entropy({.classes = 3});
  const losses::SmoothApOptions options{.classes = 3, .temperature = 0.2, .pool = {.queue = 15}};
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    for (const Layout& split : splits_of(30, group.size())) {
      const auto first = offset(split, group.rank());
      const auto n = split[index(group.rank())];
      losses::Batch batch{rows.part(rows.logits, {1, 3}, first, n),
                          rows.part(rows.targets, Shape::vector(1), first, n)};
      batch.weight = rows.part(rows.of_targets, Shape::vector(1), first, n);
      losses::SmoothAp main(options);
      losses::WarmUp loss(
          entropy, std::make_unique<losses::SmoothAp>(options),
          {.warmup_steps = 1, .blend_steps = 1, .temp_start = 0.2, .temp_end = 0.2});
      for (std::int64_t step = 0; step < 3; ++step) {
        loss.start_step(step);
        const auto got = loss(group, batch);
        const double w = loss.main_weight();
        auto want = entropy(group, batch);
        auto gradient = values_of(want.grad);
        want.loss *= 1 - w;
        for (double& g : gradient) g *= 1 - w;
        if (step > 0) {
          const auto ranked = main(group, batch);
          want.loss += w * ranked.loss;
          for (std::size_t i = 0; i < gradient.size(); ++i)
            gradient[i] += w * values_of(ranked.grad)[i];
        }
        EXPECT_NEAR(got.loss, want.loss, 1e-12 * want.loss) << step;
        const auto part = values_of(got.grad);
        for (std::size_t i = 0; i < part.size(); ++i) ASSERT_NEAR(part[i], gradient[i], 1e-11);
        auto without = batch;
        without.weight.reset();
        EXPECT_GT(std::abs(entropy(group, without).loss - entropy(group, batch).loss), 1e-3);
        EXPECT_GT(std::abs(losses::SmoothAp(options)(group, without).loss -
                           losses::SmoothAp(options)(group, batch).loss),
                  1e-3);
      }
    }
  });
}

TEST(WeightedTermsAlone, WeightsOfAnotherShapeOrTypeAreRefused) {
  const WeightedTerms rows(2);
  const auto logits = rows.part(rows.logits, {1, 3, 2}, 0, 2);
  const auto yes = rows.part(rows.yes, {1, 3, 2}, 0, 2);
  const std::vector<double> many(12, 1);
  const auto refuse_sigmoid = [&](const Shape& shape) {
    const auto weights =
        view(std::span(many).first(static_cast<std::size_t>(shape.numel())), shape);
    expect_error(Errc::invalid_argument, {"sigmoid_focal", "weights are " + to_string(shape)},
                 [&] { SigmoidFocal()({.logits = logits, .targets = yes, .weight = weights}); });
  };
  refuse_sigmoid({2});
  refuse_sigmoid({1, 3, 2});
  refuse_sigmoid({2, 3});
  refuse_sigmoid({2, 2, 1});
  const auto targets = rows.part(rows.targets, {1, 2}, 0, 2);
  expect_error(Errc::invalid_argument, {"softmax_focal", "weights are [2, 1]", "[2, 2]"}, [&] {
    SoftmaxFocal()(
        {.logits = logits, .targets = targets, .weight = view(std::span(many).first(2), {2, 1})});
  });
  losses::Batch batch{rows.part(rows.logits, {1, 3}, 0, 2),
                      rows.part(rows.targets, Shape::vector(1), 0, 2)};
  const std::vector<std::int64_t> whole{1, 1};
  batch.weight = whole;
  expect_error(Errc::invalid_argument, {"cross_entropy", "weights are i64"},
               [&] { CrossEntropy({.classes = 3})(batch); });
  batch.weight = std::span(many).first(3);
  expect_error(Errc::invalid_argument, {"cross_entropy", "weights are [3]"},
               [&] { CrossEntropy({.classes = 3})(batch); });
}

}  // namespace
}  // namespace tutti::test
