#include <string>

#include <gtest/gtest.h>

#include "unit/losses/feature_calls.hpp"

// Results of losses over features have the same bits for every split, world size, backend, number
// of threads and tile size.

namespace tutti::test {
namespace {

struct FeatureBits {
  std::vector<FeatureCall> calls;
  FeatureSetup setup;
};

/// Two calls over several blocks of rows and columns, the second with a queue.
FeatureBits bits_problem(FeatureKind kind) {
  std::mt19937_64 random(7);
  FeatureBits p;
  p.setup = {.kind = kind, .scale = 9.5, .bias = -3, .smoothing = 0.1, .queue = {600, 20}};
  for (const auto rows : {650, 333})
    p.calls.push_back(make_feature_call(random, rows, 20, 40, true, false));
  return p;
}

std::vector<FeatureSplit> splits_of(std::mt19937_64& random, const FeatureBits& p, int ranks) {
  std::vector<FeatureSplit> splits;
  for (const auto& call : p.calls) splits.push_back(draw_feature_split(random, call.rows, ranks));
  return splits;
}

bool is_bits_world(const World& world) {
  return !world.checked &&
         (world.backend == "local" || world.backend == "shm" || world.backend == "gloo");
}

/// The bytes of the gradients: halves have no ==.
template <typename T>
std::vector<std::byte> bytes_of(const std::vector<FeatureOutcome<T>>& outcomes, bool gradients) {
  std::vector<std::byte> all;
  const auto append = [&](const auto& values) {
    const auto bytes = std::as_bytes(std::span(values));
    all.insert(all.end(), bytes.begin(), bytes.end());
  };
  for (const auto& outcome : outcomes) {
    append(std::vector{outcome.loss});
    if (gradients) {
      append(outcome.anchors);
      append(outcome.candidates);
    } else {
      append(std::vector{outcome.scale, outcome.bias});
    }
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
    std::vector<FeatureSplit> whole;
    for (const auto& call : p.calls) whole.push_back({call.rows});
    const auto want =
        bytes_of(run_feature_calls<T>({"local", 1}, p.setup, p.calls, whole), gradients);
    std::mt19937_64 random(3);
    int variant = 0;
    for (const auto& world : ranks) {
      auto setup = p.setup;
      setup.engine.threads = 1 + variant % 4;
      setup.engine.tile_rows = 128 * (1 + variant % 3);
      setup.engine.tile_columns = 512 * (1 + variant / 2 % 3);
      const auto splits = splits_of(random, p, world.size);
      EXPECT_EQ(bytes_of(run_feature_calls<T>(world, setup, p.calls, splits), gradients), want)
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

// Without a group too, and with the queue of a state that was saved by another number of ranks.
TEST(FeatureBits, OfOneProcessAndOfALoadedQueueAreThose) {
  const auto p = bits_problem(FeatureKind::clip);
  std::vector<FeatureSplit> whole;
  for (const auto& call : p.calls) whole.push_back({call.rows});
  const auto want = run_feature_calls<float>({"local", 1}, p.setup, p.calls, whole);

  const auto alone = make_feature_loss(p.setup);
  std::vector<FeatureOutcome<float>> got(2);
  std::string state;
  for (std::size_t c = 0; c < 2; ++c) {
    const FeaturePart<float> part(p.calls[c], 0, p.calls[c].rows);
    append_gradients(got[c], (*alone)(part.batch(p.setup.kind)));
    if (c == 0) state = alone->save();
  }
  EXPECT_TRUE(got == want);

  PerRank<FeatureOutcome<float>> of_ranks(3);
  on_ranks({"local", 3}, [&](ProcessGroup& group) {
    const auto loss = make_feature_loss(p.setup);
    loss->load(group, state);
    EXPECT_EQ(loss->queued(), 600);
    const auto first = p.calls[1].rows * group.rank() / 3;
    const auto last = p.calls[1].rows * (group.rank() + 1) / 3;
    const FeaturePart<float> part(p.calls[1], first, last - first);
    append_gradients(of_ranks[group.rank()], (*loss)(group, part.batch(p.setup.kind)));
    EXPECT_EQ(loss->queued(), 600);
  });
  auto loaded = of_ranks[0];
  for (const int rank : {1, 2}) {
    auto& more = of_ranks[rank];
    loaded.anchors.insert(loaded.anchors.end(), more.anchors.begin(), more.anchors.end());
    loaded.candidates.insert(loaded.candidates.end(), more.candidates.begin(),
                             more.candidates.end());
  }
  EXPECT_EQ(loaded.loss, want[1].loss);
  EXPECT_EQ(loaded.anchors, want[1].anchors);
  EXPECT_EQ(loaded.candidates, want[1].candidates);
}

// A queue that goes on over a group of other ranks: those that were ranks 1 and 2 of three.
TEST(FeatureBits, OfAQueueThatGoesOnOverFewerRanksAreThoseOfOneProcess) {
  auto p = bits_problem(FeatureKind::siglip);
  p.setup.queue.rows = 200;  // Less than the rows of these two ranks in the first call.
  std::vector<FeatureSplit> whole;
  for (const auto& call : p.calls) whole.push_back({call.rows});
  const auto want = run_feature_calls<float>({"local", 1}, p.setup, p.calls, whole);
  std::vector<std::unique_ptr<losses::FeatureLoss>> kept(3);
  on_ranks({"local", 3}, [&](ProcessGroup& group) {
    auto& loss = kept[static_cast<std::size_t>(group.rank())];
    loss = make_feature_loss(p.setup);
    const FeaturePart<float> part(p.calls[0], group.rank() == 0 ? 0 : 50 + 300 * (group.rank() - 1),
                                  group.rank() == 0 ? 50 : 300);
    (void)(*loss)(group, part.batch(p.setup.kind));
  });
  PerRank<FeatureOutcome<float>> of_ranks(2);
  on_ranks({"local", 2}, [&](ProcessGroup& group) {
    auto& loss = kept[static_cast<std::size_t>(group.rank() + 1)];
    loss->set_group(group);
    EXPECT_EQ(loss->queued(), 200);
    const FeaturePart<float> part(p.calls[1], group.rank() == 0 ? 0 : 100,
                                  group.rank() == 0 ? 100 : p.calls[1].rows - 100);
    append_gradients(of_ranks[group.rank()], (*loss)(group, part.batch(p.setup.kind)));
  });
  auto anchors = of_ranks[0].anchors;
  anchors.insert(anchors.end(), of_ranks[1].anchors.begin(), of_ranks[1].anchors.end());
  EXPECT_EQ(of_ranks[0].loss, want[1].loss);
  EXPECT_EQ(anchors, want[1].anchors);
}

// An evaluation counts the queue and leaves it as it is.
TEST(FeatureBits, OfAnEvaluationAreThoseOfTrainingAndTheQueueStays) {
  const auto p = bits_problem(FeatureKind::sup_con);
  const auto loss = make_feature_loss(p.setup);
  const FeaturePart<float> part(p.calls[0], 0, p.calls[0].rows);
  auto batch = part.batch(p.setup.kind);
  batch.training = false;
  const auto evaluated = (*loss)(batch);
  EXPECT_EQ(loss->queued(), 0);
  batch.training = true;
  EXPECT_EQ((*loss)(batch).loss, evaluated.loss);
  EXPECT_EQ(loss->queued(), 600);
  EXPECT_NE((*loss)(batch).loss, evaluated.loss);
}

}  // namespace
}  // namespace tutti::test
