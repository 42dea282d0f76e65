#include "conformance/losses/pool_calls.hpp"

#include <algorithm>
#include <cmath>
#include <random>

#include <tutti/losses/p_auc_at_budget.hpp>
#include <tutti/losses/recall_at_quantile.hpp>
#include <tutti/losses/smooth_ap.hpp>

#include "support/call_loss.hpp"

namespace tutti::test {

using losses::PAucAtBudgetOptions;
using losses::PoolOptions;
using losses::RankingLoss;

PoolRows PoolRows::part(std::int64_t first, std::int64_t n) const {
  const auto cut = [&](const auto& from, std::int64_t width) {
    return std::remove_cvref_t<decltype(from)>(from.begin() + first * width,
                                               from.begin() + (first + n) * width);
  };
  PoolRows rows{classes, cut(logits, classes), cut(targets, 1), cut(iid, 1)};
  if (weights) rows.weights = cut(*weights, 1);
  return rows;
}

void PoolRows::append(const PoolRows& more) {
  if (weights || more.weights) {
    const auto of = [](const PoolRows& rows) {
      return rows.weights.value_or(std::vector<double>(rows.targets.size(), 1));
    };
    auto all = of(*this);
    for (const double weight : of(more)) all.push_back(weight);
    weights = all;
  }
  logits.insert(logits.end(), more.logits.begin(), more.logits.end());
  targets.insert(targets.end(), more.targets.begin(), more.targets.end());
  iid.insert(iid.end(), more.iid.begin(), more.iid.end());
}

PoolRows make_pool_rows(std::int64_t count, std::int64_t classes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> score;
  PoolRows rows{classes, {}, {}, {}};
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::int64_t c = 0; c < classes; ++c) {
      const double value = score(random);
      rows.logits.push_back(random() % 4 == 0 ? std::round(value) : static_cast<float>(value));
    }
    const auto some = static_cast<std::int64_t>(random() % 1000);
    rows.targets.push_back(some % 6 == 5  ? losses::default_ignore_index
                           : classes == 1 ? some % 3 == 0
                                          : some % (classes - 1));
    rows.iid.push_back(random() % 5 != 0);
  }
  return rows;
}

void add_weights(PoolRows& rows, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> some(0, 3);
  rows.weights.emplace();
  for (std::int64_t i = 0; i < rows.count(); ++i) {
    const auto kind = random() % 6;
    rows.weights->push_back(kind < 2 ? static_cast<double>(kind) : some(random));
  }
}

RankingKind smooth_ap_kind(double temperature) {
  return {"smooth_ap", [temperature](std::int64_t classes, const PoolOptions& pool) {
            return std::make_unique<losses::SmoothAp>(losses::SmoothApOptions{
                .classes = classes, .temperature = temperature, .pool = pool});
          }};
}

RankingKind recall_kind() {
  return {"recall_at_quantile", [](std::int64_t classes, const PoolOptions& pool) {
            return std::make_unique<losses::RecallAtQuantile>(losses::RecallAtQuantileOptions{
                .classes = classes, .quantile = 0.1, .temperature = 0.2, .pool = pool});
          }};
}

namespace {

RankingKind p_auc_kind(const char* name, PAucAtBudgetOptions options) {
  options.alpha = 0.05;
  options.beta = 0.6;
  options.interpolation = losses::Interpolation::linear;
  return {name, [options](std::int64_t classes, const PoolOptions& pool) {
            auto all = options;
            all.classes = classes;
            all.pool = pool;
            return std::make_unique<losses::PAucAtBudget>(all);
          }};
}

}  // namespace

RankingKind trapezoid_kind() {
  return p_auc_kind("p_auc trapezoid", {.knots = 3});
}
RankingKind pairwise_kind() {
  return p_auc_kind("p_auc pairwise", {.surrogate = PAucAtBudgetOptions::Surrogate::pairwise,
                                       .tau_scale = PAucAtBudgetOptions::Scale::band,
                                       .basis = PAucAtBudgetOptions::Basis::population});
}
RankingKind live_kind() {
  return p_auc_kind("p_auc live", {.surrogate = PAucAtBudgetOptions::Surrogate::pairwise,
                                   .positives = PAucAtBudgetOptions::Positives::live});
}

std::vector<RankingKind> ranking_kinds() {
  return {smooth_ap_kind(), recall_kind(), trapezoid_kind(), pairwise_kind()};
}

PoolRows PoolSequence::rows(std::size_t call) const {
  auto made =
      make_pool_rows(calls[call].rows, classes, 100 * static_cast<std::uint64_t>(classes) + call);
  if (calls[call].ignored) std::ranges::fill(made.targets, losses::default_ignore_index);
  if (calls[call].weighted) add_weights(made, call);
  return made;
}

PoolSequence pool_sequence(std::int64_t classes, std::int64_t queue, bool large) {
  PoolSequence sequence{.classes = classes, .calls = {}, .large = large};
  const std::int64_t n = large ? 1500 : 13;
  sequence.calls = {{.rows = n},
                    {.rows = n / 2, .training = false},
                    {.rows = n, .ignored = true},
                    {.rows = std::min(2 * queue + 5, 3 * n)}};
  if (!large) sequence.calls.insert(sequence.calls.end(), {{.rows = 0}, {.rows = 1}});
  sequence.calls.push_back({.rows = n + 4});
  return sequence;
}

PoolOutcome call_pool(RankingLoss& loss, ProcessGroup* group, const PoolRows& rows, bool in_float,
                      bool training) {
  const Shape shape{rows.count(), rows.classes};
  const std::vector<float> narrow(rows.logits.begin(), rows.logits.end());
  const auto logits =
      in_float ? view(std::span(narrow), shape) : view(std::span(rows.logits), shape);
  losses::Batch batch{logits, rows.targets, rows.iid, training};
  if (rows.weights) batch.weight = *rows.weights;
  const auto got = call_loss(loss, group, batch);
  PoolOutcome outcome{got.loss, got.per_class, got.status, {}, loss.queued()};
  EXPECT_EQ(got.grad.shape(), shape);
  EXPECT_EQ(got.grad.dtype(), logits.dtype);
  for (std::int64_t i = 0; i < shape.numel(); ++i)
    outcome.grad.push_back(in_float ? static_cast<const float*>(got.grad.data())[i]
                                    : static_cast<const double*>(got.grad.data())[i]);
  return outcome;
}

std::vector<PoolOutcome> alone(const PoolSequence& sequence, const RankingKind& kind,
                               const PoolOptions& pool) {
  const auto loss = kind.make(sequence.classes, pool);
  std::vector<PoolOutcome> all;
  for (std::size_t i = 0; i < sequence.calls.size(); ++i)
    all.push_back(
        call_pool(*loss, nullptr, sequence.rows(i), sequence.in_float, sequence.calls[i].training));
  return all;
}

std::vector<PoolOutcome> by_list_of_rows(const PoolSequence& sequence, const RankingKind& kind,
                                         std::int64_t queue) {
  std::deque<PoolRows> list;  // Of one row each.
  std::vector<PoolOutcome> all;
  for (std::size_t i = 0; i < sequence.calls.size(); ++i) {
    const auto live = sequence.rows(i);
    auto pool = live;
    for (const auto& row : list) pool.append(row);
    auto outcome = call_pool(*kind.make(sequence.classes, {}), nullptr, pool, sequence.in_float);
    outcome.grad.resize(live.logits.size());
    for (std::int64_t r = 0; sequence.calls[i].training && r < live.count(); ++r) {
      const auto row = live.part(r, 1);
      if (row.targets[0] != losses::default_ignore_index) list.push_back(row);
      if (std::ssize(list) > queue) list.pop_front();
    }
    outcome.queued = std::ssize(list);
    all.push_back(outcome);
  }
  return all;
}

Layout pool_split(std::int64_t rows, int ranks, std::size_t call) {
  const auto w = index(ranks);
  Layout split(w, 0);
  switch (call % 4) {
    case 0:  // Even; the last one has the rest.
      std::ranges::fill(split, rows / ranks);
      break;
    case 1:  // One rank has all rows.
      split[call / 4 % w] = rows;
      break;
    case 2:  // Increasing; the first has none.
      for (std::size_t r = 0; r < w; ++r)
        split[r] = rows * static_cast<std::int64_t>(r) / (ranks * ranks);
      break;
    default:  // One rank has nearly all rows.
      std::ranges::fill(split, std::min<std::int64_t>(2, rows / ranks));
      split[0] += rows - total(split);
  }
  split.back() += rows - total(split);
  return split;
}

void expect_part(const PoolOutcome& got, const PoolOutcome& want, const ProcessGroup& group,
                 const Layout& split, const PoolSequence& sequence) {
  SCOPED_TRACE("rows " + to_string(split));
  // Tolerance: ranks sum in another order; floats are rounded at the end.
  const double tolerance = sequence.in_float ? 1e-5 : 1e-12;
  EXPECT_NEAR(got.loss, want.loss, tolerance);
  EXPECT_EQ(got.status, want.status);
  EXPECT_EQ(got.queued, want.queued);
  for (std::size_t c = 0; c < got.per_class.size(); ++c) {
    if (want.status[c] != losses::ClassStatus::valid)
      EXPECT_TRUE(std::isnan(got.per_class[c]));
    else
      EXPECT_NEAR(got.per_class[c], want.per_class[c], tolerance);
  }
  double largest = 1;
  for (const double g : want.grad) largest = std::max(largest, std::abs(g));
  const auto first = static_cast<std::size_t>(offset(split, group.rank()) * sequence.classes);
  ASSERT_EQ(std::ssize(got.grad), split[index(group.rank())] * sequence.classes);
  for (std::size_t i = 0; i < got.grad.size(); ++i)
    ASSERT_NEAR(got.grad[i], group.size() * want.grad[first + i],
                tolerance * group.size() * largest)
        << "gradient " << i;
}

void expect_calls(RankingLoss& loss, ProcessGroup& group, const PoolSequence& sequence,
                  std::span<const PoolOutcome> want, std::size_t first, std::size_t last) {
  for (std::size_t i = first; i < last; ++i) {
    SCOPED_TRACE("call " + std::to_string(i));
    const auto split = pool_split(sequence.calls[i].rows, group.size(), i);
    const auto mine =
        sequence.rows(i).part(offset(split, group.rank()), split[index(group.rank())]);
    const auto got = call_pool(loss, &group, mine, sequence.in_float, sequence.calls[i].training);
    expect_part(got, want[i], group, split, sequence);
  }
}

}  // namespace tutti::test
