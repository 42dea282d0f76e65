#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "support/errors.hpp"
#include "unit/losses/feature_calls.hpp"

// Calls of losses over features that are wrong on one rank are refused on all, and leave no trace.

namespace tutti::test {
namespace {

using losses::Clip;
using losses::FeatureBatch;
using losses::SigLip;
using losses::SupCon;

/// Worlds of two and three ranks of the backends that the losses are tested with.
std::vector<World> feature_worlds() {
  std::vector<World> all;
  for (const auto& world : worlds({2, 3}))
    if (!world.checked &&
        (world.backend == "local" || world.backend == "shm" || world.backend == "gloo"))
      all.push_back(world);
  return all;
}

class FeatureRefusals : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
  bool is_odd(const ProcessGroup& group) const { return group.rank() == world().size - 1; }
};
INSTANTIATE_TEST_SUITE_P(Worlds, FeatureRefusals, testing::ValuesIn(feature_worlds()), CaseName());

FeatureCall small_call(std::int64_t rows = 4, std::int64_t dims = 3) {
  std::mt19937_64 random(11);
  return make_feature_call(random, rows, dims, 2, false, false);
}

TEST_P(FeatureRefusals, AMistakeOfOneRankIsAnErrorOnAllAndLeavesNoTrace) {
  struct Mistake {
    const char* text;
    std::function<void(FeaturePart<float>& part, FeatureBatch& batch)> make;
  };
  constexpr auto nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<double> negative{1, 2, -1, 1};
  const Mistake mistakes[] = {
      {"anchors[1, 2] is nan", [](auto& part, auto&) { part.anchors[5] = nan; }},
      {"candidates[0, 1] is inf", [](auto& part, auto&) { part.candidates[1] = HUGE_VALF; }},
      {"the sum of the squares of anchors[3]", [](auto& part, auto&) { part.anchors[9] = 1e16F; }},
      {"anchors are f32 [4, 3], candidates f32 [3, 3]",
       [](auto&, auto& batch) {
         batch.candidates.shape = {3, 3};
       }},
      {"anchors are [12]", [](auto&, auto& batch) { batch.anchors.shape = Shape::vector(12); }},
      {"anchors are i32", [](auto&, auto& batch) { batch.anchors.dtype = DType::i32; }},
      {"weights[2] is -1", [&](auto&, auto& batch) { batch.weight = negative; }},
  };
  const auto call = small_call();
  on_ranks(world(), [&](ProcessGroup& group) {
    Clip loss({.logit_scale = 3});
    FeaturePart<float> right(call, 0, 4);
    const auto first = loss(group, right.batch(FeatureKind::clip));
    for (const auto& mistake : mistakes) {
      SCOPED_TRACE(mistake.text);
      FeaturePart<float> part(call, 0, 4);
      auto batch = part.batch(FeatureKind::clip);
      const std::vector<double> ones(4, 1);
      if (mistake.text[0] == 'w') batch.weight = ones;
      if (is_odd(group)) mistake.make(part, batch);
      expect_error(is_odd(group) ? Errc::invalid_argument : Errc::mismatch, {"clip", mistake.text},
                   [&] { (void)loss(group, batch); });
    }
    EXPECT_EQ(loss(group, right.batch(FeatureKind::clip)).loss, first.loss);
  });
}

TEST_P(FeatureRefusals, LabelsAreChecked) {
  const auto call = small_call();
  on_ranks(world(), [&](ProcessGroup& group) {
    SupCon loss;
    const FeaturePart<float> part(call, 0, 4);
    auto batch = part.batch(FeatureKind::sup_con);
    if (is_odd(group)) batch.labels.shape = Shape::vector(3);
    expect_error(is_odd(group) ? Errc::invalid_argument : Errc::mismatch,
                 {"sup_con", "labels are i64 [3], anchors [4, 3]"},
                 [&] { (void)loss(group, batch); });
  });
}

TEST_P(FeatureRefusals, RanksWithOtherOptionsAreRefusedWithBothSides) {
  const auto call = small_call();
  on_ranks(world(), [&](ProcessGroup& group) {
    const bool odd = is_odd(group);
    const FeaturePart<float> part(call, 0, 4);
    const auto batch = part.batch(FeatureKind::clip);
    const auto expect_options = [&](const losses::ClipOptions& mine,
                                    const losses::ClipOptions& other,
                                    const std::vector<std::string>& texts) {
      Clip loss(odd ? other : mine);
      expect_error(Errc::mismatch, texts, [&] { (void)loss(group, batch); });
    };
    expect_options({.logit_scale = 2}, {.logit_scale = 3}, {"logit_scale 2", "logit_scale 3"});
    expect_options({}, {.label_smoothing = 0.25}, {"label_smoothing 0,", "label_smoothing 0.25"});
    expect_options({}, {.grad_scale = GradScale::mean}, {"grad_scale sum", "grad_scale mean"});
    expect_options({}, {.engine = {.in_double = true}}, {"in double"});
    expect_options({}, {.engine = {.gemm = [](const losses::MatrixProduct&) {}}}, {"own gemm"});
    // Threads and tiles may differ.
    Clip loss({.engine = {.threads = odd ? 2 : 1, .tile_rows = odd ? 256 : 128}});
    EXPECT_GT(loss(group, batch).loss, 0);
    SigLip sig({.bias = odd ? -1.0 : -2.0});
    expect_error(Errc::mismatch, {"bias -1", "bias -2"}, [&] { (void)sig(group, batch); });
  });
}

TEST_P(FeatureRefusals, RanksWithOtherArraysAreRefusedWithBothSides) {
  on_ranks(world(), [&](ProcessGroup& group) {
    const bool odd = is_odd(group);
    Clip loss;
    const auto call = small_call(4, odd ? 5 : 3);
    const FeaturePart<float> part(call, 0, 4);
    expect_error(Errc::mismatch, {"f32 [*, 3]", "f32 [*, 5]"},
                 [&] { (void)loss(group, part.batch(FeatureKind::clip)); });
    const auto same = small_call();
    const FeaturePart<float> floats(same, 0, 4);
    const FeaturePart<double> doubles(same, 0, 4);
    expect_error(Errc::mismatch, {"f32 [*, 3]", "f64 [*, 3]"}, [&] {
      (void)loss(group, odd ? doubles.batch(FeatureKind::clip) : floats.batch(FeatureKind::clip));
    });
    auto batch = floats.batch(FeatureKind::clip);
    const std::vector<double> weights(4, 1);
    if (odd) batch.weight = weights;
    expect_error(Errc::mismatch, {"with weights"}, [&] { (void)loss(group, batch); });
    SupCon other;
    expect_error(Errc::mismatch, {"clip", "sup_con"}, [&] {
      odd ? (void)other(group, floats.batch(FeatureKind::sup_con))
          : (void)loss(group, floats.batch(FeatureKind::clip));
    });
  });
}

TEST(FeatureOptions, OutOfRangeAreRefused) {
  const auto expect_refused = [](const losses::ClipOptions& options, const char* text) {
    expect_error(Errc::invalid_argument, {"clip", text}, [&] { Clip made(options); });
  };
  expect_refused({.logit_scale = 0}, "logit_scale is 0");
  expect_refused({.logit_scale = std::nan("")}, "logit_scale is nan");
  expect_refused({.label_smoothing = 1.5}, "label_smoothing is 1.5");
  expect_refused({.engine = {.threads = 0}}, "threads is 0");
  expect_refused({.engine = {.tile_rows = 100}}, "tile_rows is 100; it must be a multiple of 128");
  expect_refused({.engine = {.tile_columns = 0}}, "tile_columns is 0");
  expect_refused({.engine = {.tile_rows = std::int64_t{1} << 40}}, "tile_rows is 1099511627776");
  expect_error(Errc::invalid_argument, {"siglip", "bias is nan"},
               [] { SigLip made({.bias = std::nan("")}); });
  for (const double temperature : {0.0, -2.0, std::nan(""), 1e7})
    expect_error(Errc::invalid_argument, {"sup_con", "temperature is"},
                 [&] { SupCon made({.temperature = temperature}); });
  Clip loss;
  expect_error(Errc::invalid_argument, {"clip", "logit_scale is -1"},
               [&] { loss.set_logit_scale(-1); });
  EXPECT_EQ(loss.logit_scale(), 1);
  expect_error(Errc::invalid_argument, {"clip", "no bias", "SigLip"}, [&] { loss.set_bias(1); });
  EXPECT_EQ(loss.bias(), 0);
}

TEST(FeatureOptions, ArraysThatTheLossDoesNotUseAreRefused) {
  const auto call = small_call();
  const FeaturePart<float> part(call, 0, 4);
  auto batch = part.batch(FeatureKind::clip);
  batch.labels = call.labels;
  expect_error(Errc::invalid_argument, {"clip", "labels are i64 [4]", "SupCon"},
               [&] { (void)Clip()(batch); });
  expect_error(Errc::invalid_argument, {"sup_con", "candidates are f32 [4, 3]", "Clip"},
               [&] { (void)SupCon()(batch); });
}

/// The product by its definition.
void plain_gemm(const losses::MatrixProduct& p) {
  const auto* a = static_cast<const float*>(p.a);
  const auto* b = static_cast<const float*>(p.b);
  auto* c = static_cast<float*>(p.c);
  for (std::int64_t i = 0; i < p.m; ++i)
    for (std::int64_t j = 0; j < p.n; ++j) {
      float sum = 0;
      for (std::int64_t k = 0; k < p.k; ++k)
        sum += a[i * p.a_stride + k] *
               (p.b_transposed ? b[j * p.b_stride + k] : b[k * p.b_stride + j]);
      c[i * p.c_stride + j] = sum;
    }
}

TEST(FeatureOptions, AGemmOfTheCallerIsUsed) {
  const auto call = small_call(700, 9);
  const FeaturePart<float> part(call, 0, 700);
  Clip own({.logit_scale = 5, .engine = {.gemm = plain_gemm}});
  Clip built({.logit_scale = 5});
  const auto got = own(part.batch(FeatureKind::clip));
  const auto want = built(part.batch(FeatureKind::clip));
  EXPECT_NEAR(got.loss, want.loss, 1e-6 * want.loss);
  EXPECT_NEAR(got.grad_logit_scale, want.grad_logit_scale, 1e-6);
  const auto g = got.grad_anchors.values<float>();
  const auto w = want.grad_anchors.values<float>();
  float most = 0;
  for (const float x : w) most = std::max(most, std::abs(x));
  for (std::size_t i = 0; i < g.size(); ++i) ASSERT_NEAR(g[i], w[i], 1e-5F * most);
  Clip zero({.logit_scale = 5, .engine = {.gemm = [](const losses::MatrixProduct& p) {
                                 for (std::int64_t i = 0; i < p.m; ++i)
                                   std::fill_n(static_cast<float*>(p.c) + i * p.c_stride, p.n,
                                               0.0F);
                               }}});
  const auto none = zero(part.batch(FeatureKind::clip));
  EXPECT_EQ(none.grad_anchors.values<float>()[0], 0);
}

TEST(FeatureOptions, SmallBatchesHaveTheirLimits) {
  Clip clip;
  SupCon con;
  FeatureCall none{.rows = 0, .dims = 3};
  const FeaturePart<float> empty(none, 0, 0);
  EXPECT_EQ(clip(empty.batch(FeatureKind::clip)).loss, 0);
  EXPECT_EQ(con(empty.batch(FeatureKind::sup_con)).loss, 0);
  const auto call = small_call(1);
  const FeaturePart<float> one(call, 0, 1);
  const auto alone = clip(one.batch(FeatureKind::clip));
  EXPECT_EQ(alone.loss, 0);
  for (const float g : alone.grad_anchors.values<float>()) EXPECT_EQ(g, 0);
  auto apart = small_call(5);
  apart.labels = {1, 2, 3, 4, 5};
  const FeaturePart<float> parts(apart, 0, 5);
  const auto without = con(parts.batch(FeatureKind::sup_con));
  EXPECT_EQ(without.loss, 0);
  for (const float g : without.grad_anchors.values<float>()) EXPECT_EQ(g, 0);
  // The row without positives does not count, however large its weight is.
  auto uneven = small_call(5);
  uneven.labels = {1, 2, 1, 2, 3};
  const FeaturePart<float> even(uneven, 0, 5);
  const auto want = con(even.batch(FeatureKind::sup_con));
  uneven.weights = {1e-300, 1e-300, 1e-300, 1e-300, 1e300};
  const FeaturePart<float> odd(uneven, 0, 5);
  const auto got = con(odd.batch(FeatureKind::sup_con));
  EXPECT_GT(got.loss, 0);
  EXPECT_EQ(got.loss, want.loss);
  EXPECT_TRUE(
      std::ranges::equal(got.grad_anchors.values<float>(), want.grad_anchors.values<float>()));
  auto weightless = small_call(3);
  weightless.weights = {0, 0, 0};
  const FeaturePart<float> none_counts(weightless, 0, 3);
  const auto zero = clip(none_counts.batch(FeatureKind::clip));
  EXPECT_EQ(zero.loss, 0);
  EXPECT_EQ(zero.grad_logit_scale, 0);
}

}  // namespace
}  // namespace tutti::test
