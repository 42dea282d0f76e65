#include <tutti/losses/sharded_cross_entropy.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/autograd.hpp>
#include <tutti/half.hpp>
#include <tutti/losses/cross_entropy.hpp>

#include "support/errors.hpp"
#include "support/ranks.hpp"

namespace tutti::test {
namespace {

using losses::LossResult;
using losses::Reduction;
using losses::ShardedCrossEntropy;

/// Rows of one process with all classes.
struct WholeRows {
  std::int64_t classes = 1;
  std::vector<double> logits{};
  std::vector<std::int64_t> targets{};
  std::vector<double> weights{};

  std::int64_t rows() const { return std::ssize(targets); }
  template <typename T>
  std::vector<T> columns(std::int64_t first, std::int64_t count) const {
    std::vector<T> part;
    for (std::int64_t i = 0; i < rows(); ++i)
      for (std::int64_t c = first; c < first + count; ++c)
        part.push_back(T(static_cast<float>(logits[static_cast<std::size_t>(i * classes + c)])));
    return part;
  }
};
template <>
std::vector<double> WholeRows::columns(std::int64_t first, std::int64_t count) const {
  std::vector<double> part;
  for (std::int64_t i = 0; i < rows(); ++i)
    for (std::int64_t c = first; c < first + count; ++c)
      part.push_back(logits[static_cast<std::size_t>(i * classes + c)]);
  return part;
}

/// Some rows are ignored, some have large logits, some an offset, some a sure target; with `masks`
/// some other classes are masked.
WholeRows make_whole_rows(std::mt19937_64& random, bool masks) {
  const auto below = [&](std::uint64_t n) { return static_cast<std::int64_t>(random() % n); };
  WholeRows whole{1 + below(40)};
  std::normal_distribution<double> score;
  const double spread = std::pow(10.0, static_cast<double>(below(4)) - 1);
  for (auto n = below(12); n > 0; --n) {
    const auto target = below(static_cast<std::uint64_t>(whole.classes));
    const double offset = below(4) == 0 ? 1000 : 0;
    const double sure = below(4) == 0 ? 30 : 0;
    for (std::int64_t c = 0; c < whole.classes; ++c)
      whole.logits.push_back(masks && c != target && below(3) == 0
                                 ? -HUGE_VAL
                                 : offset + spread * score(random) + (c == target ? sure : 0));
    whole.targets.push_back(below(6) == 0 ? losses::default_ignore_index : target);
    whole.weights.push_back(static_cast<double>(below(5)) / 2);
  }
  return whole;
}

/// Counts of classes per rank; some may be 0.
std::vector<std::int64_t> shards_of(std::mt19937_64& random, std::int64_t classes, int ranks) {
  std::vector<std::int64_t> cuts{0, classes};
  for (int r = 1; r < ranks; ++r)
    cuts.push_back(static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(classes + 1)));
  std::ranges::sort(cuts);
  std::vector<std::int64_t> counts;
  for (std::size_t k = 1; k < cuts.size(); ++k) counts.push_back(cuts[k] - cuts[k - 1]);
  return counts;
}

struct Expected {
  double loss = 0;
  std::vector<double> each{}, grad{};
};
/// The definition, in long double.
Expected by_definition(const WholeRows& whole, const ShardedCrossEntropy::Options& o,
                       bool weighted) {
  const auto classes = static_cast<std::size_t>(whole.classes);
  const long double e = o.label_smoothing;
  long double total = 0;
  long double count = 0;
  std::vector<long double> each(whole.targets.size());
  std::vector<long double> grad(whole.logits.size());
  for (std::size_t i = 0; i < each.size(); ++i) {
    if (whole.targets[i] == o.ignore_index) continue;
    const long double w = weighted ? whole.weights[i] : 1;
    const auto* z = &whole.logits[i * classes];
    const auto own = static_cast<std::size_t>(whole.targets[i]);
    const long double even = e / static_cast<long double>(classes);
    for (std::size_t c = 0; c < classes; ++c) {
      if (std::isinf(z[c])) continue;  // Masked.
      long double odds = 0;  // Against class c; without the term 1 of c, so that no digit is lost.
      for (std::size_t j = 0; j < classes; ++j)
        if (j != c) odds += std::exp(static_cast<long double>(z[j]) - z[c]);
      const long double share = (c == own ? 1 - e : 0) + even;
      if (share > 0) each[i] += w * share * std::log1p(odds);
      grad[i * classes + c] = w * (c == own ? e - even - odds / (1 + odds) : 1 / (1 + odds) - even);
    }
    total += each[i];
    count += w;
  }
  const long double divisor = o.reduction != Reduction::mean ? 1 : count;
  Expected want{divisor > 0 ? static_cast<double>(total / divisor) : 0};
  for (const auto one : each) want.each.push_back(static_cast<double>(one));
  for (const auto one : grad)
    want.grad.push_back(divisor > 0 ? static_cast<double>(one / divisor) : 0);
  return want;
}

template <typename T>
LossResult call_sharded(const ShardedCrossEntropy& loss, ProcessGroup& group,
                        const WholeRows& whole, const std::vector<std::int64_t>& shards,
                        bool weighted) {
  const auto r = static_cast<std::size_t>(group.rank());
  const auto first =
      std::accumulate(shards.begin(), shards.begin() + group.rank(), std::int64_t{0});
  const auto z = whole.columns<T>(first, shards[r]);
  const auto logits = view(std::span(z), {whole.rows(), shards[r]});
  return weighted ? loss(group, logits, whole.targets, whole.weights)
                  : loss(group, logits, whole.targets);
}

/// Checks that the result of a rank has the bits of the columns of the whole.
template <typename T>
void expect_columns(const LossResult& got, const LossResult& whole, std::int64_t classes,
                    std::int64_t first) {
  ASSERT_EQ(got.loss, whole.loss);
  ASSERT_EQ(got.per_element, whole.per_element);
  ASSERT_EQ(got.grad.dtype(), dtype_of<T>);
  const auto own = got.grad.shape().dims()[1];
  const auto* mine = static_cast<const T*>(got.grad.data());
  const auto* all = static_cast<const T*>(whole.grad.data());
  for (std::int64_t i = 0; i < got.grad.shape().rows(); ++i)
    if (own > 0) {
      ASSERT_EQ(std::memcmp(mine + i * own, all + i * classes + first,
                            static_cast<std::size_t>(own) * sizeof(T)),
                0)
          << "row " << i;
    }
}

TEST(ShardedCrossEntropyOfRandomRows, IsTheDefinitionWithTheSameBitsForAnySharding) {
  std::mt19937_64 random(11);
  for (int problem = 0; problem < 500; ++problem) {
    SCOPED_TRACE(problem);
    const bool smooth = problem % 3 == 0;
    const bool weighted = problem % 2 == 0;
    const auto whole = make_whole_rows(random, !smooth && problem % 4 < 2);
    const ShardedCrossEntropy::Options options{.label_smoothing = smooth ? 0.125 : 0,
                                               .reduction = static_cast<Reduction>(problem % 5 % 3),
                                               .threads = 1 + problem % 3};
    const auto want = by_definition(whole, options, weighted);
    const auto z = whole.columns<double>(0, whole.classes);
    const auto logits = view(std::span(z), {whole.rows(), whole.classes});
    const ShardedCrossEntropy loss(options);
    const auto alone =
        weighted ? loss(logits, whole.targets, whole.weights) : loss(logits, whole.targets);
    ASSERT_NEAR(alone.loss, want.loss, 1e-12 * want.loss);
    const auto* grad = static_cast<const double*>(alone.grad.data());
    for (std::size_t k = 0; k < want.grad.size(); ++k)
      ASSERT_NEAR(grad[k], want.grad[k], 1e-15 + 1e-12 * std::abs(want.grad[k]));
    const auto z32 = whole.columns<float>(0, whole.classes);
    const auto alone32 = loss(view(std::span(z32), {whole.rows(), whole.classes}), whole.targets);
    const World world{"local", 1 + problem % 5};
    const auto shards = shards_of(random, whole.classes, world.size);
    on_ranks(world, [&](ProcessGroup& group) {
      const auto first =
          std::accumulate(shards.begin(), shards.begin() + group.rank(), std::int64_t{0});
      expect_columns<double>(call_sharded<double>(loss, group, whole, shards, weighted), alone,
                             whole.classes, first);
      expect_columns<float>(call_sharded<float>(loss, group, whole, shards, false), alone32,
                            whole.classes, first);
    });
  }
}

TEST(ShardedCrossEntropyAlone, EqualsCrossEntropy) {
  std::mt19937_64 random(12);
  for (const double smoothing : {0.0, 0.3, 1.0})
    for (int problem = 0; problem < 30; ++problem) {
      const auto whole = make_whole_rows(random, false);
      if (whole.classes == 1) continue;  // CrossEntropy is then binary.
      const auto z = whole.columns<double>(0, whole.classes);
      const auto logits = view(std::span(z), {whole.rows(), whole.classes});
      const auto want = losses::CrossEntropy(
          {.classes = whole.classes, .label_smoothing = smoothing})({logits, whole.targets});
      const auto got = ShardedCrossEntropy({.label_smoothing = smoothing})(logits, whole.targets);
      EXPECT_NEAR(got.loss, want.loss, 1e-12 * (1 + want.loss));
      for (std::size_t k = 0; k < z.size(); ++k)
        EXPECT_NEAR(static_cast<const double*>(got.grad.data())[k],
                    static_cast<const double*>(want.grad.data())[k], 1e-12);
    }
}

TEST(ShardedCrossEntropyAlone, SureRowsKeepTheirSmallLossAndGradient) {
  const std::vector<double> logits{40, 0, 800, 0};
  const std::vector<std::int64_t> targets{0, 0};
  const auto got =
      ShardedCrossEntropy({.reduction = Reduction::none})(view(std::span(logits), {2, 2}), targets);
  const auto* grad = static_cast<const double*>(got.grad.data());
  EXPECT_DOUBLE_EQ(got.per_element[0], std::log1p(std::exp(-40)));
  EXPECT_DOUBLE_EQ(grad[0], -std::exp(-40));
  EXPECT_DOUBLE_EQ(grad[1], std::exp(-40));
  EXPECT_EQ(grad[2], 0);
}

TEST(ShardedCrossEntropyAlone, ARowOfWeightZeroDoesNotCountEvenIfItsLossIsInfinite) {
  const std::vector<double> logits{1.7e308, -1.7e308, 1, 1};
  const std::vector<std::int64_t> targets{1, 0};
  const std::vector<double> weights{0, 2};
  for (const auto reduction : {Reduction::mean, Reduction::sum}) {
    const auto got = ShardedCrossEntropy({.reduction = reduction})(view(std::span(logits), {2, 2}),
                                                                   targets, weights);
    const double weight = reduction == Reduction::mean ? 1 : 2;
    EXPECT_DOUBLE_EQ(got.loss, weight * std::log(2.0));
    const auto* grad = static_cast<const double*>(got.grad.data());
    EXPECT_EQ(grad[0], 0);
    EXPECT_EQ(grad[1], 0);
    EXPECT_DOUBLE_EQ(grad[3], weight / 2);
  }
}

// A million terms of which each is below the last bit of a sum in double.
TEST(ShardedCrossEntropyAlone, ManySmallTermsAreNotLost) {
  constexpr std::size_t classes = 1'000'001;
  std::vector<double> logits(classes, -40);
  logits[1] = 0;
  const std::vector<std::int64_t> targets{0};
  const auto got = ShardedCrossEntropy()(view(std::span(logits), {1, classes}), targets);
  EXPECT_NEAR(got.loss, 40 + std::log1p(1e6 * std::exp(-40)), 1e-14);
}

TEST(ShardedCrossEntropyAlone, HalfTypesAreRoundedOnce) {
  std::mt19937_64 random(5);
  const auto whole = make_whole_rows(random, false);
  const auto expect = [&]<typename T>(T) {
    const auto z = whole.columns<T>(0, whole.classes);
    std::vector<double> wide;
    for (const T x : z) wide.push_back(static_cast<float>(x));
    const Shape shape{whole.rows(), whole.classes};
    const auto got = ShardedCrossEntropy()(view(std::span(z), shape), whole.targets);
    const auto want = ShardedCrossEntropy()(view(std::span(wide), shape), whole.targets);
    EXPECT_EQ(got.loss, want.loss);
    ASSERT_GT(z.size(), 0U);
    for (std::size_t k = 0; k < z.size(); ++k)
      EXPECT_EQ(static_cast<float>(static_cast<const T*>(got.grad.data())[k]),
                static_cast<float>(
                    T(static_cast<float>(static_cast<const double*>(want.grad.data())[k]))));
  };
  expect(Float16());
  expect(BFloat16());
}

TEST(ShardedCrossEntropyAlone, WhatIsOutOfRangeIsRefused) {
  const auto refused = [](const std::string& text, const ShardedCrossEntropy::Options& options) {
    expect_error(Errc::invalid_argument, {"sharded_cross_entropy", text},
                 [&] { ShardedCrossEntropy{options}; });
  };
  refused("label_smoothing is 1.5", {.label_smoothing = 1.5});
  refused("threads is 0", {.threads = 0});
  const std::vector<double> logits{1, 2};
  const std::vector<std::int64_t> targets{0, 1};
  expect_error(Errc::invalid_argument, {"logits are [2]", "[N, C_r]"},
               [&] { ShardedCrossEntropy()(logits, targets); });
  const std::vector<double> huge{1.7e308, -1.7e308};
  const std::vector<std::int64_t> first{0};
  expect_error(Errc::invalid_argument, {"logits of row 0 are -1.7e+308 to 1.7e+308"}, [&] {
    ShardedCrossEntropy({.label_smoothing = 0.1})(view(std::span(huge), {1, 2}), first);
  });
}

/// Returns the matrix product of a [n, k] and b [k, m], of which `turned` ones are transposed.
std::vector<double> product(const std::vector<double>& a, bool a_turned,
                            const std::vector<double>& b, bool b_turned, std::size_t k) {
  const auto n = a.size() / k;
  const auto m = b.size() / k;
  std::vector<double> c(n * m);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < m; ++j)
      for (std::size_t x = 0; x < k; ++x)
        c[i * m + j] += a[a_turned ? x * n + i : i * k + x] * b[b_turned ? j * k + x : x * m + j];
  return c;
}
std::vector<double> doubles_of(const Tensor& tensor) {
  const auto values = tensor.values<double>();
  return {values.begin(), values.end()};
}

// What docs/losses.md says about a layer whose features were gathered from the ranks, and about one
// whose features are replicated.
TEST(ShardedCrossEntropyOfALayer, GradientsOfFeaturesAndWeightsAreThoseOfOneProcess) {
  constexpr std::int64_t d = 3;
  const std::vector<std::int64_t> rows{2, 0, 5};
  const std::vector<std::int64_t> classes{4, 1, 2};
  std::mt19937_64 random(2);
  std::normal_distribution<double> some;
  const auto draw = [&](std::int64_t count) {
    std::vector<double> all;
    for (; count > 0; --count) all.push_back(some(random));
    return all;
  };
  const auto features = draw(7 * d);  // [N, d]
  const auto weights = draw(7 * d);   // [C, d]
  const std::vector<std::int64_t> targets{0, 6, 3, 4, 5, 4, 1};
  const auto whole = product(features, false, weights, true, d);
  const ShardedCrossEntropy loss;
  const auto want = doubles_of(loss(view(std::span(whole), {7, 7}), targets).grad);
  const auto by_features = product(want, false, weights, false, 7);
  const auto by_weights = product(want, true, features, false, 7);
  on_ranks({"local", 3}, [&](ProcessGroup& group) {
    const auto r = static_cast<std::size_t>(group.rank());
    const auto begin = [&](const std::vector<std::int64_t>& counts) {
      return std::accumulate(counts.begin(), counts.begin() + group.rank(), std::int64_t{0}) * d;
    };
    const auto part = [&](const std::vector<double>& all, const std::vector<std::int64_t>& counts) {
      return std::vector<double>(all.begin() + begin(counts),
                                 all.begin() + begin(counts) + counts[r] * d);
    };
    const auto shard = part(weights, classes);
    const auto own = part(features, rows);
    const auto gathered =
        autograd::all_gather_rows(group, view(std::span(own), {rows[r], d}), GradScale::sum);
    const auto logits = product(doubles_of(gathered.value), false, shard, true, d);
    const auto by_logits =
        doubles_of(loss(group, view(std::span(logits), {7, classes[r]}), targets).grad);
    const auto near = [](const std::vector<double>& got, const std::vector<double>& expected) {
      ASSERT_EQ(got.size(), expected.size());
      for (std::size_t k = 0; k < got.size(); ++k) EXPECT_NEAR(got[k], expected[k], 1e-14);
    };
    near(product(by_logits, true, features, false, 7), part(by_weights, classes));
    auto by_all = product(by_logits, false, shard, false, static_cast<std::size_t>(classes[r]));
    const auto back = gathered.back(group, view(std::span(by_all), {7, d}));
    near(doubles_of(back.value), part(by_features, rows));
    group.all_reduce(by_all);  // Replicated features.
    near(by_all, by_features);
  });
}

}  // namespace
}  // namespace tutti::test
