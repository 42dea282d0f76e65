#include <cmath>
#include <string>

#include <gtest/gtest.h>

#include "unit/losses/feature_calls.hpp"

// Compares losses over features with their definitions, for random problems on 1 to 5 ranks.

namespace tutti::test {
namespace {

struct FeatureErrors {
  long double loss = 0, gradient = 0, scale = 0, bias = 0;
  void take(const FeatureErrors& other) {
    loss = std::max(loss, other.loss);
    gradient = std::max(gradient, other.gradient);
    scale = std::max(scale, other.scale);
    bias = std::max(bias, other.bias);
  }
  long double most() const { return std::max({loss, gradient, scale, bias}); }
};

long double largest_of(const std::vector<long double>& values) {
  long double most = 0;
  for (const auto v : values) most = std::max(most, std::abs(v));
  return most;
}

/// Relative errors: of a gradient by its largest element. `unit` is what rounding of 1 is worth.
template <typename T>
FeatureErrors errors_of(const FeatureOutcome<T>& got, const FeatureReference& want,
                        long double unit) {
  FeatureErrors errors;
  const auto relative = [](long double g, long double w, long double size) {
    return g == w ? 0 : std::abs(g - w) / size;
  };
  errors.loss = relative(got.loss, want.loss, std::max(std::abs(want.loss), unit));
  errors.scale = relative(got.scale, want.scale, std::max(std::abs(want.scale), unit));
  errors.bias = relative(got.bias, want.bias, std::max(std::abs(want.bias), unit));
  const auto size = std::max({largest_of(want.anchors), largest_of(want.candidates), unit});
  EXPECT_EQ(got.anchors.size(), want.anchors.size());
  EXPECT_EQ(got.candidates.size(), want.candidates.size());
  for (std::size_t i = 0; i < got.anchors.size(); ++i)
    errors.gradient = std::max(
        errors.gradient, relative(static_cast<long double>(static_cast<double>(got.anchors[i])),
                                  want.anchors[i], size));
  for (std::size_t i = 0; i < got.candidates.size(); ++i)
    errors.gradient = std::max(
        errors.gradient, relative(static_cast<long double>(static_cast<double>(got.candidates[i])),
                                  want.candidates[i], size));
  return errors;
}

FeatureReference reference_of(const FeatureSetup& setup, const FeatureCall& call,
                              const FeatureCall& queue) {
  switch (setup.kind) {
    case FeatureKind::clip:
      return reference_clip(call, queue, setup.scale, setup.smoothing);
    case FeatureKind::siglip:
      return reference_siglip(call, queue, setup.scale, setup.bias);
    case FeatureKind::sup_con:
      break;
  }
  auto reference = reference_sup_con(call, queue, setup.scale);
  reference.bias = 0;
  return reference;
}

/// Draws a problem and returns the errors of its calls.
FeatureErrors errors_of_problem(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto draw = [&](std::uint64_t most) { return static_cast<std::int64_t>(random() % most); };
  FeatureSetup setup;
  setup.kind = static_cast<FeatureKind>(random() % 3);
  setup.scale = std::pow(10.0, -2 + static_cast<double>(random() % 5001) / 1000);
  setup.bias = static_cast<double>(draw(40)) / 2 - 15;
  if (random() % 3 == 0) setup.smoothing = static_cast<double>(random() % 11) / 10;
  setup.engine.threads = 1 + static_cast<int>(random() % 2);
  const int ranks = 1 + static_cast<int>(random() % 5);
  const auto dims = 1 + draw(33);
  const bool queue = random() % 2 == 0;
  if (queue) setup.queue = {.rows = 1 + draw(60), .dims = dims};
  // Some problems have several blocks of rows and columns.
  const bool large = seed % 25 == 0;
  if (large && queue) setup.queue.rows = 600;
  if (large && random() % 2 == 0) setup.engine.max_gathered_bytes = 1;
  if (!large && random() % 4 == 0) setup.engine.max_gathered_bytes = 1 + draw(4000);
  std::vector<FeatureCall> calls;
  std::vector<FeatureSplit> splits;
  const bool weighted = random() % 3 == 0;
  for (int c = 0; c < (queue ? 3 : 1); ++c) {
    const auto rows = large ? 300 + draw(500) : draw(40);
    calls.push_back(
        make_feature_call(random, rows, dims, 1 + draw(20), weighted, random() % 2 == 0));
    splits.push_back(draw_feature_split(random, rows, ranks));
  }
  const auto got = run_feature_calls<double>({"local", ranks}, setup, calls, splits);
  FeatureErrors errors;
  FeatureCall queued;
  for (std::size_t c = 0; c < calls.size(); ++c) {
    auto want = reference_of(setup, calls[c], queued);
    want.scale /= ranks;  // GradScale::mean.
    want.bias = setup.kind == FeatureKind::siglip ? want.bias / ranks : 0;
    const auto unit = 1e-3L * static_cast<long double>(std::max(1.0, setup.scale)) /
                      static_cast<long double>(std::max<std::int64_t>(calls[c].rows, 1));
    errors.take(errors_of(got[c], want, setup.kind == FeatureKind::sup_con ? unit : 1e-280L));
    queued = enqueue_reference(queued, calls[c], setup.queue.rows);
  }
  return errors;
}

TEST(FeatureReference, FiveHundredRandomProblemsInDoubleEqualTheirDefinition) {
  FeatureErrors worst;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    const auto errors = errors_of_problem(seed);
    EXPECT_LE(errors.most(), 1e-12L)
        << "seed " << seed << ": loss " << errors.loss << ", gradient " << errors.gradient
        << ", scale " << errors.scale << ", bias " << errors.bias;
    worst.take(errors);
  }
  if (std::getenv("TUTTI_TEST_SHOW") != nullptr)
    std::printf("worst errors: loss %Lg gradient %Lg scale %Lg bias %Lg\n", worst.loss,
                worst.gradient, worst.scale, worst.bias);
}

}  // namespace
}  // namespace tutti::test
