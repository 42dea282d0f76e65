#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include <tutti/half.hpp>
#include <tutti/losses/cross_entropy.hpp>
#include <tutti/losses/focal.hpp>
#include <tutti/losses/p_auc_at_budget.hpp>
#include <tutti/losses/recall_at_quantile.hpp>
#include <tutti/losses/smooth_ap.hpp>

#include "conformance/losses/loss_rows.hpp"
#include "support/call_loss.hpp"

// The claims that hold for every loss of logits and targets. The test of each loss has its numbers.

namespace tutti::test {
namespace {

using losses::Batch;
using losses::ClassStatus;
using losses::LossResult;
using losses::Reduction;

/// Options that every loss has; `by_positives` only focal losses.
struct Way {
  Reduction reduction = Reduction::mean;
  GradScale grad_scale = GradScale::sum;
  bool by_positives = false;
  bool other = false;  ///< Another value of an option that only this loss has.
};
constexpr Way every_way[] = {{},
                             {.grad_scale = GradScale::local_slice},
                             {.reduction = Reduction::sum, .grad_scale = GradScale::mean},
                             {.reduction = Reduction::none},
                             {.by_positives = true}};

/// A loss, and the shapes of one row of its arrays.
struct EveryLoss {
  std::string name;
  Shape logits, targets, weights;
  bool shares = false;  ///< The targets are like the logits, 0 or 1.
  bool terms = false;   ///< The loss is a sum of terms, one for each target.
  std::string other{};  ///< The option of Way::other.
  std::function<LossResult(ProcessGroup*, const Batch&, const Way&)> call{};
};

template <typename Loss>
EveryLoss of(EveryLoss loss, const typename Loss::Options& options, const char* name,
             const typename Loss::Options& other) {
  loss.other = name;
  loss.call = [=](ProcessGroup* group, const Batch& batch, const Way& way) {
    auto o = way.other ? other : options;
    o.reduction = way.reduction;
    o.grad_scale = way.grad_scale;
    if constexpr (requires { o.normalize_by_positives; })
      o.normalize_by_positives = way.by_positives;
    return call_loss(Loss(o), group, batch);
  };
  return loss;
}

std::vector<EveryLoss> every_loss() {
  using losses::CrossEntropy;
  using losses::PAucAtBudget;
  using Surrogate = losses::PAucAtBudgetOptions::Surrogate;
  const EveryLoss one{"", {1, 1}, {1}, {1}};
  const EveryLoss three{"", {1, 3}, {1}, {1}};
  const auto named = [](EveryLoss loss, const char* name, bool terms = false) {
    loss.name = name;
    loss.terms = terms;
    return loss;
  };
  const losses::PAucAtBudgetOptions p_auc{
      .classes = 3, .beta = 0.5, .interpolation = losses::Interpolation::linear};
  auto pairwise = p_auc;
  pairwise.surrogate = Surrogate::pairwise;
  auto narrow = p_auc;
  narrow.beta = 0.25;
  return {
      of<losses::SmoothAp>(named(one, "smooth_ap"), {.temperature = 0.1}, "temperature 0.2,",
                           {.temperature = 0.2}),
      of<losses::SmoothAp>(named(three, "smooth_ap"), {.classes = 3, .temperature = 0.5},
                           "temperature 0.25,", {.classes = 3, .temperature = 0.25}),
      of<losses::RecallAtQuantile>(named(three, "recall_at_quantile"),
                                   {.classes = 3, .quantile = 0.2, .temperature = 0.2},
                                   "quantile 0.25,", {.classes = 3, .quantile = 0.25}),
      of<PAucAtBudget>(named(three, "p_auc_at_budget"), p_auc, "beta 0.25,", narrow),
      of<PAucAtBudget>(named(three, "p_auc_at_budget"), pairwise, "surrogate trapezoid", p_auc),
      of<CrossEntropy>(named(one, "cross_entropy", true), {.pos_weight = 4}, "pos_weight 2.5,",
                       {.pos_weight = 2.5}),
      of<CrossEntropy>(named(three, "cross_entropy", true),
                       {.classes = 3, .weight = {0.5, 3, 0}, .label_smoothing = 0.1},
                       "weight [0.5, 3, 1]", {.classes = 3, .weight = {0.5, 3, 1}}),
      of<losses::SigmoidFocal>({"sigmoid_focal", {1, 3, 2}, {1, 3, 2}, {1, 1, 1}, true, true}, {},
                               "gamma 3,", {.gamma = 3}),
      of<losses::SigmoidFocal>({"sigmoid_focal", {1, 3, 2}, {1, 3, 2}, {1, 3, 2}, true}, {},
                               "alpha 0.5,", {.alpha = 0.5}),
      of<losses::SoftmaxFocal>({"softmax_focal", {1, 3, 2}, {1, 2}, {1, 2}, false, true},
                               {.alpha = {0.3, 1, 2}, .label_smoothing = 0.1}, "background 1,",
                               {.background = 1}),
  };
}

std::string title_of(const EveryLoss& loss, const Way& way, bool weighted) {
  return loss.name + " of " + to_string(loss.logits) + ", reduction " +
         std::to_string(static_cast<int>(way.reduction)) + ", grad_scale " +
         std::to_string(static_cast<int>(way.grad_scale)) + (weighted ? ", weighted" : "");
}

/// Rows of a loss; T is the type of the logits.
template <typename T>
struct EveryRows {
  const EveryLoss* loss;
  std::vector<T> logits, shares;
  std::vector<std::int64_t> targets;
  std::vector<double> weights;  ///< 0 to 3, integers.

  EveryRows(const EveryLoss& of, std::int64_t count, unsigned seed = 1) : loss(&of) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> score;
    const auto classes = static_cast<std::uint64_t>(std::max<std::int64_t>(2, of.logits.dims()[1]));
    for (std::int64_t i = 0; i < count * of.logits.numel(); ++i) {
      logits.push_back(T(static_cast<float>(Float16(score(random)))));
      shares.push_back(T(random() % 4 == 0 ? 1.0F : 0.0F));
    }
    for (std::int64_t i = 0; i < count * of.targets.numel(); ++i)
      targets.push_back(random() % 6 == 5 ? losses::default_ignore_index
                                          : static_cast<std::int64_t>(random() % classes));
    for (std::int64_t i = 0; i < count * of.weights.numel(); ++i)
      weights.push_back(static_cast<double>(random() % 4));
  }

  Batch part(std::int64_t first, std::int64_t n, bool weighted) const {
    const auto cut = [&](const auto& all, const Shape& row) {
      return view(std::span(all).subspan(static_cast<std::size_t>(first * row.numel()),
                                         static_cast<std::size_t>(n * row.numel())),
                  row.with_rows(n));
    };
    Batch batch{cut(logits, loss->logits),
                loss->shares ? cut(shares, loss->targets) : cut(targets, loss->targets)};
    if (weighted) batch.weight = cut(weights, loss->weights);
    return batch;
  }

  /// Each row as many times as its weight says.
  EveryRows repeated() const {
    EveryRows all(*loss, 0);
    const auto add = [](auto& to, const auto& from, std::size_t row, const Shape& shape) {
      const auto width = static_cast<std::ptrdiff_t>(shape.numel());
      const auto first = from.begin() + static_cast<std::ptrdiff_t>(row) * width;
      to.insert(to.end(), first, first + width);
    };
    const auto width = static_cast<std::size_t>(loss->weights.numel());
    for (std::size_t row = 0; row < weights.size() / width; ++row)
      for (int k = 0; k < static_cast<int>(weights[row * width]); ++k) {
        add(all.logits, logits, row, loss->logits);
        add(all.shares, shares, row, loss->logits);
        add(all.targets, targets, row, loss->targets);
      }
    return all;
  }
};

void expect_near(std::span<const double> got, std::span<const double> want, double tolerance,
                 double factor = 1) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(want[i])) {
      ASSERT_TRUE(std::isnan(got[i])) << i;
    } else {
      ASSERT_NEAR(got[i], factor * want[i], factor * tolerance) << i;
    }
  }
}

class EveryLossOf : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, EveryLossOf, testing::ValuesIn(worlds()), CaseName());

template <typename T>
void expect_one_process(const World& world, const EveryLoss& loss, std::int64_t count,
                        const Way& way, bool weighted) {
  SCOPED_TRACE(title_of(loss, way, weighted) + ", rows " + std::to_string(count));
  const EveryRows<T> rows(loss, count);
  const auto want = loss.call(nullptr, rows.part(0, count, weighted), way);
  const double tolerance = sizeof(T) == sizeof(double) ? 1e-12 : 1e-5;
  const auto gradient = values_of<T>(want.grad);
  double largest = 1;
  for (const double g : gradient) largest = std::max(largest, std::abs(g));
  on_ranks(world, [&](ProcessGroup& group) {
    for (const Layout& split : splits_of(count, group.size())) {
      SCOPED_TRACE("split " + to_string(split));
      const auto first = offset(split, group.rank());
      const auto n = split[index(group.rank())];
      const auto got = loss.call(&group, rows.part(first, n, weighted), way);
      EXPECT_NEAR(got.loss, want.loss, tolerance * std::max(1.0, want.loss));
      EXPECT_EQ(got.status, want.status);
      EXPECT_EQ(got.grad.shape(), loss.logits.with_rows(n));
      expect_near(got.per_class, want.per_class, tolerance);
      const auto part = [&](std::span<const double> all, const Shape& row) {
        return all.subspan(static_cast<std::size_t>(first * row.numel()),
                           static_cast<std::size_t>(n * row.numel()));
      };
      if (!want.per_element.empty())
        expect_near(got.per_element, part(want.per_element, loss.targets), tolerance);
      expect_near(values_of<T>(got.grad), part(gradient, loss.logits), tolerance * largest,
                  way.grad_scale == GradScale::sum ? group.size() : 1);
    }
  });
}

TEST_P(EveryLossOf, AnySplitIsOneProcess) {
  for (const auto& loss : every_loss()) {
    bool weighted = false;
    for (const Way& way : every_way)
      expect_one_process<double>(GetParam(), loss, 41, way, weighted = !weighted);
    // More rows than one message has: sums over ranks, or rows that other ranks compute.
    if (!reduced()) expect_one_process<double>(GetParam(), loss, 1100, {}, true);
    expect_one_process<float>(GetParam(), loss, 41, {}, false);
  }
}

TEST_P(EveryLossOf, AMistakeOfOneRankIsAnErrorOnAll) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const bool last = group.rank() == group.size() - 1;
    for (const auto& loss : every_loss()) {
      SCOPED_TRACE(loss.name);
      const EveryRows<double> good(loss, 8);
      const EveryRows<float> narrow(loss, 8);
      const auto refused = [&](const char* text,
                               const std::function<void(EveryRows<double>&)>& make,
                               const std::function<void(Batch&)>& change = {}) {
        auto rows = good;
        if (last && make) make(rows);
        auto batch = rows.part(0, 8, true);
        if (last && change) change(batch);
        expect_error(last ? Errc::invalid_argument : Errc::mismatch, {loss.name, text},
                     [&] { loss.call(&group, batch, {}); });
      };
      refused("] is nan", [](auto& rows) { rows.logits[5] = std::nan(""); });
      refused("] is -inf", [](auto& rows) { rows.logits[0] = -HUGE_VAL; });
      refused("targets[1] is 7", [](auto& rows) {
        rows.targets[1] = 7;
        rows.shares[1] = 7;
      });
      refused("targets[1] is -1", [](auto& rows) {
        rows.targets[1] = -1;
        rows.shares[1] = -1;
      });
      refused("weights[1] is -0.5", [](auto& rows) { rows.weights[1] = -0.5; });
      refused("] is inf", [](auto& rows) { rows.weights[1] = HUGE_VAL; });
      const std::vector<std::int64_t> whole(good.logits.size(), 1);
      const std::vector<std::int32_t> small(good.logits.size(), 1);
      const auto as = [](const auto& all, const Shape& shape) {
        return view(std::span(all).first(static_cast<std::size_t>(shape.numel())), shape);
      };
      refused("logits are i64", {}, [&](Batch& b) { b.logits = as(whole, b.logits.shape); });
      refused("targets ", {}, [&](Batch& b) { b.targets = as(small, b.targets.shape); });
      refused("targets ", {}, [&](Batch& b) { b.targets = good.part(0, 7, false).targets; });
      refused("weights are i64", {}, [&](Batch& b) { b.weight = as(whole, b.weight->shape); });
      refused("weights are [7", {}, [&](Batch& b) { b.weight = good.part(0, 7, true).weight; });
      if (group.size() > 1) {
        const auto differs = [&](const std::vector<std::string>& texts, const Batch& batch,
                                 const Way& way = {}) {
          expect_error(Errc::mismatch, texts, [&] { loss.call(&group, batch, way); });
        };
        const auto all = good.part(0, 8, false);
        differs({"logits f32", "logits f64"}, last ? narrow.part(0, 8, false) : all);
        differs({", with weights", "rank " + std::to_string(group.size() - 1)},
                good.part(0, last ? 0 : 8, !last));
        differs({"reduction mean", "reduction sum"}, all,
                {.reduction = last ? Reduction::sum : Reduction::mean});
        differs({loss.other}, all, {.other = last});
        differs({"grad_scale mean", "grad_scale sum"}, all,
                {.grad_scale = last ? GradScale::sum : GradScale::mean});
      }
      loss.call(&group, good.part(0, last ? 0 : 8, true), {});
    }
  });
}

TEST(EveryLossAlone, WeightsOfOneChangeNoBit) {
  for (const auto& loss : every_loss())
    for (const Way& way : every_way) {
      EveryRows<float> rows(loss, 40);
      std::ranges::fill(rows.weights, 1);
      const auto want = loss.call(nullptr, rows.part(0, 40, false), way);
      const auto got = loss.call(nullptr, rows.part(0, 40, true), way);
      EXPECT_EQ(got.loss, want.loss) << title_of(loss, way, true);
      EXPECT_EQ(values_of<float>(got.grad), values_of<float>(want.grad));
      EXPECT_EQ(got.per_element, want.per_element);
    }
}

// In a ranking loss a copy would change the ranks.
TEST(EveryLossAlone, AWeightIsAsManyCopiesOfATerm) {
  for (const auto& loss : every_loss())
    for (const Way& way : every_way) {
      if (!loss.terms || way.reduction == Reduction::none) continue;
      SCOPED_TRACE(title_of(loss, way, true));
      EveryRows<double> rows(loss, 30);
      const auto width = static_cast<std::size_t>(loss.weights.numel());
      for (std::size_t i = 0; i < rows.weights.size(); ++i)
        rows.weights[i] = rows.weights[i / width * width];
      const auto copies = rows.repeated();
      const auto want = loss.call(
          nullptr, copies.part(0, std::ssize(copies.logits) / loss.logits.numel(), false), way);
      const auto got = loss.call(nullptr, rows.part(0, 30, true), way);
      EXPECT_NEAR(got.loss, want.loss, 1e-12 * want.loss);
      const auto slopes = values_of(got.grad);
      const auto of_copies = values_of(want.grad);
      const auto size = static_cast<std::size_t>(loss.logits.numel());
      std::size_t copy = 0;
      for (std::size_t i = 0; i < slopes.size(); ++i) {
        const double weight = rows.weights[i / size * width];
        ASSERT_NEAR(slopes[i], weight == 0 ? 0 : weight * of_copies[copy + i % size], 1e-12) << i;
        if (i % size == size - 1) copy += size * static_cast<std::size_t>(weight);
      }
    }
}

TEST_P(EveryLossOf, WhereNothingCountsLossAndGradientAreZero) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    for (const auto& loss : every_loss())
      for (const Way& way : every_way)
        for (const auto& [count, weighted] :
             {std::pair<std::int64_t, bool>{0, false}, {6, false}, {6, true}}) {
          EveryRows<float> rows(loss, count);
          std::ranges::fill(rows.weights, 0);
          if (!weighted) {
            std::ranges::fill(rows.targets, losses::default_ignore_index);
            if (loss.shares && count > 0) continue;
          }
          const auto got = loss.call(&group, rows.part(0, count, weighted), way);
          EXPECT_EQ(got.loss, 0) << title_of(loss, way, weighted);
          EXPECT_FALSE(std::signbit(got.loss));
          EXPECT_EQ(values_of<float>(got.grad), std::vector<double>(rows.logits.size()));
          EXPECT_EQ(std::ranges::count(got.status, ClassStatus::valid), 0);
          for (const double value : got.per_class) EXPECT_TRUE(std::isnan(value));
        }
  });
}

template <typename Half>
void expect_as_float(const EveryLoss& loss) {
  const EveryRows<Half> rows(loss, 30);
  EveryRows<float> wide(loss, 30);
  for (std::size_t i = 0; i < wide.logits.size(); ++i)
    wide.logits[i] = static_cast<float>(rows.logits[i]);
  const auto want = loss.call(nullptr, wide.part(0, 30, false), {});
  const auto got = loss.call(nullptr, rows.part(0, 30, false), {});
  EXPECT_EQ(got.loss, want.loss) << loss.name;
  EXPECT_EQ(got.grad.dtype(), dtype_of<Half>);
  EXPECT_EQ(got.grad.shape(), want.grad.shape());
}

TEST(EveryLossAlone, HalfTypesAndVectorsAreTaken) {
  for (const auto& loss : every_loss()) {
    expect_as_float<Float16>(loss);
    expect_as_float<BFloat16>(loss);
    if (loss.logits.numel() > 1) continue;
    const EveryRows<float> rows(loss, 30);
    auto batch = rows.part(0, 30, true);
    const auto want = loss.call(nullptr, batch, {});
    batch.logits.shape = Shape{30};
    batch.targets.shape = Shape{30, 1};
    std::vector<Float16> weights;
    for (const double w : rows.weights) weights.emplace_back(static_cast<float>(w));
    batch.weight = weights;
    const auto got = loss.call(nullptr, batch, {});
    EXPECT_EQ(got.loss, want.loss);
    EXPECT_EQ(got.grad.shape(), Shape{30});
  }
}

}  // namespace
}  // namespace tutti::test
