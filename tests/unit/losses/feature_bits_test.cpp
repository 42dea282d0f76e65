#include <gtest/gtest.h>

#include "unit/losses/feature_calls.hpp"

// Results of losses over features have the same bits for every split, world size, backend, number
// of threads and tile size.

namespace tutti::test {
namespace {

struct FeatureBits {
  FeatureCall call;
  FeatureSetup setup;
};

/// A call over several blocks of rows and columns.
FeatureBits bits_problem(FeatureKind kind) {
  std::mt19937_64 random(7);
  return {make_feature_call(random, 650, 20, 40, true, false),
          {.kind = kind, .scale = 9.5, .bias = -3, .smoothing = 0.1}};
}

bool is_bits_world(const World& world) {
  return !world.checked &&
         (world.backend == "local" || world.backend == "shm" || world.backend == "gloo");
}

/// The bytes of the gradients: halves have no ==.
template <typename T>
std::vector<std::byte> bytes_of(const FeatureOutcome<T>& outcome, bool gradients) {
  std::vector<std::byte> all;
  const auto append = [&](const auto& values) {
    const auto bytes = std::as_bytes(std::span(values));
    all.insert(all.end(), bytes.begin(), bytes.end());
  };
  append(std::vector{outcome.loss});
  if (gradients) {
    append(outcome.anchors);
    append(outcome.candidates);
  } else {
    append(std::vector{outcome.scale, outcome.bias});
  }
  return all;
}

template <typename T>
void expect_one_pattern(FeatureKind kind, bool in_double, const std::vector<World>& ranks) {
  auto p = bits_problem(kind);
  p.setup.engine.in_double = in_double;
  for (const auto grad_scale : {GradScale::mean, GradScale::sum}) {
    // grad_scale of `sum`, and the features' gradients of `mean`, are the derivatives themselves.
    const bool gradients = grad_scale == GradScale::mean;
    p.setup.grad_scale = grad_scale;
    const auto want =
        bytes_of(run_feature_call<T>({"local", 1}, p.setup, p.call, {p.call.rows}), gradients);
    std::mt19937_64 random(3);
    int variant = 0;
    for (const auto& world : ranks) {
      auto setup = p.setup;
      setup.engine.threads = 1 + variant % 4;
      setup.engine.tile_rows = 128 * (1 + variant % 3);
      setup.engine.tile_columns = 512 * (1 + variant / 2 % 3);
      const auto split = draw_feature_split(random, p.call.rows, world.size);
      EXPECT_EQ(bytes_of(run_feature_call<T>(world, setup, p.call, split), gradients), want)
          << to_string(world) << ", variant " << variant;
      ++variant;
    }
  }
}

std::vector<World> bits_worlds() {
  std::vector<World> all;
  for (const auto& world : worlds())
    if (is_bits_world(world)) all.push_back(world);
  return all;
}

TEST(FeatureBits, AreOnePatternForEverySplitWorldAndTile) {
  auto all = bits_worlds();
  ASSERT_GE(all.size(), 4U);
  for (const auto kind : {FeatureKind::clip, FeatureKind::siglip, FeatureKind::sup_con}) {
    SCOPED_TRACE(static_cast<int>(kind));
    expect_one_pattern<float>(kind, false, all);
  }
}

TEST(FeatureBits, AreOnePatternInDoubleAndForHalfTypes) {
  const std::vector<World> all{{"local", 1}, {"local", 2}, {"local", 3}, {"local", 4}};
  for (const auto kind : {FeatureKind::clip, FeatureKind::siglip, FeatureKind::sup_con}) {
    SCOPED_TRACE(static_cast<int>(kind));
    expect_one_pattern<double>(kind, false, all);
    expect_one_pattern<float>(kind, true, all);
    expect_one_pattern<BFloat16>(kind, false, all);
  }
}

TEST(FeatureBits, OfOneProcessWithoutAGroupAreThose) {
  const auto p = bits_problem(FeatureKind::clip);
  const FeaturePart<float> part(p.call, 0, p.call.rows);
  FeatureOutcome<float> got;
  append_gradients(got, (*make_feature_loss(p.setup))(part.batch(p.setup.kind)));
  EXPECT_TRUE(got == run_feature_call<float>({"local", 1}, p.setup, p.call, {p.call.rows}));
}

}  // namespace
}  // namespace tutti::test
