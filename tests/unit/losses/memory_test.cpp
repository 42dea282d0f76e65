#include <sys/resource.h>

#include <cstdlib>
#include <fstream>
#include <new>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/losses/clip.hpp>
#include <tutti/losses/p_auc_at_budget.hpp>
#include <tutti/losses/siglip.hpp>
#include <tutti/losses/smooth_ap.hpp>

#include "support/processes.hpp"

// A loss needs memory for the rows, not for pairs of them: each runs in a process with limited
// address space.

namespace tutti::test {
namespace {

using losses::PAucAtBudget;
using losses::SmoothAp;

constexpr std::size_t megabyte = std::size_t{1} << 20;

/// Limits the address space of this process to `bytes` more.
void limit_memory(std::size_t bytes) {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t limit = pages * 4096 + bytes;
  const rlimit both{limit, limit};
  if (pages == 0 || setrlimit(RLIMIT_AS, &both) != 0) std::exit(3);
}

struct Rows {
  std::vector<float> logits;
  std::vector<std::int64_t> targets;

  Rows(std::int64_t count, std::int64_t classes, std::int64_t positives) {
    std::mt19937_64 random(5);
    std::normal_distribution<float> score;
    for (std::int64_t i = 0; i < count * classes; ++i) logits.push_back(score(random));
    for (std::int64_t i = 0; i < count; ++i)
      targets.push_back(classes > 1 ? i % classes : (i < positives ? 1 : 0));
  }
  losses::RankingBatch batch(std::int64_t classes) const {
    return {{logits.data(), DType::f32, {std::ssize(targets), classes}}, targets};
  }
};

struct FeatureRowsOfTest {
  std::int64_t dims;
  std::vector<float> anchors, candidates;

  FeatureRowsOfTest(std::int64_t rows, std::int64_t columns) : dims(columns) {
    std::mt19937_64 random(5);
    std::normal_distribution<float> feature(0, 0.1F);
    for (auto* side : {&anchors, &candidates})
      for (std::int64_t i = 0; i < rows * dims; ++i) side->push_back(feature(random));
  }
  losses::FeatureBatch batch() const {
    losses::FeatureBatch batch;
    const Shape shape{std::ssize(anchors) / dims, dims};
    batch.anchors = {anchors.data(), DType::f32, shape};
    batch.candidates = {candidates.data(), DType::f32, shape};
    return batch;
  }
};

/// Exit status of the child: 0 if `loss` succeeded within the limit.
template <typename Loss, typename Batch>
void run(Loss loss, const Batch& batch, std::size_t bytes) {
  limit_memory(bytes);
  try {
    std::exit(loss(batch).loss > 0 ? 0 : 1);
  } catch (const std::bad_alloc&) {
  } catch (const Error&) {
  }
  std::exit(2);
}

class LossMemory : public testing::Test {
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "sanitizers need address space of their own";
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    GTEST_SKIP() << "sanitizers need address space of their own";
#endif
#endif
    if (is_emulated()) GTEST_SKIP() << "the emulator applies no limit of memory";
  }
};

using testing::ExitedWithCode;

TEST_F(LossMemory, AMillionRowsNeedLessThan200Megabytes) {
  const Rows rows(1'000'000, 1, 50'000);
  EXPECT_EXIT(run(SmoothAp(), rows.batch(1), 200 * megabyte), ExitedWithCode(0), "");
}

// All pairs would be 1.3 GB.
TEST_F(LossMemory, ThePairLoopKeepsNoPairs) {
  const Rows rows(40'000, 1, 4'000);
  EXPECT_EXIT(run(SmoothAp(), rows.batch(1), 24 * megabyte), ExitedWithCode(0), "");
  const PAucAtBudget::Options pairs{.beta = 0.5,
                                    .surrogate = PAucAtBudget::Options::Surrogate::pairwise};
  EXPECT_EXIT(run(PAucAtBudget(pairs), rows.batch(1), 24 * megabyte), ExitedWithCode(0), "");
}

TEST_F(LossMemory, GrowsWithRowsTimesClasses) {
  const Rows rows(50'000, 16, 0);
  // 50,000 x 16 rows of classes: 160 bytes each.
  EXPECT_EXIT(run(SmoothAp({.classes = 16}), rows.batch(16), 128 * megabyte), ExitedWithCode(0),
              "");
}

// The matrix of all pairs would be 268 MB. Beside the caller's features there are the gradients, as
// large as they, about a hundred bytes for each row, and less than 4 MB of the thread.
TEST_F(LossMemory, LossesOverFeaturesKeepNoPairs) {
  constexpr std::int64_t rows = 8192;
  const FeatureRowsOfTest features(rows, 64);
  const auto gradients = static_cast<std::size_t>(2 * rows * 64) * sizeof(float);
  EXPECT_EXIT(run(losses::Clip({.scale = 5}), features.batch(), gradients + 8 * megabyte),
              ExitedWithCode(0), "");
  EXPECT_EXIT(run(losses::SigLip(), features.batch(), gradients + 8 * megabyte), ExitedWithCode(0),
              "");
}

// The matrix of all pairs would be 17 GB.
TEST_F(LossMemory, SlowSigLipOf65536RowsKeepsNoPairs) {
  constexpr std::int64_t rows = 65'536;
  const FeatureRowsOfTest features(rows, 64);
  const auto gradients = static_cast<std::size_t>(2 * rows * 64) * sizeof(float);
  EXPECT_EXIT(run(losses::SigLip(), features.batch(), gradients + 8 * megabyte), ExitedWithCode(0),
              "");
}

TEST_F(LossMemory, SlowClipOf65536RowsKeepsNoPairs) {
  constexpr std::int64_t rows = 65'536;
  const FeatureRowsOfTest features(rows, 64);
  const auto gradients = static_cast<std::size_t>(2 * rows * 64) * sizeof(float);
  EXPECT_EXIT(run(losses::Clip({.scale = 5}), features.batch(), gradients + 12 * megabyte),
              ExitedWithCode(0), "");
}

// Checks the limit itself: without it the tests above could not fail.
TEST_F(LossMemory, TooLittleIsAnError) {
  const Rows rows(1'000'000, 1, 50'000);
  EXPECT_EXIT(run(SmoothAp(), rows.batch(1), 16 * megabyte), ExitedWithCode(2), "");
}

}  // namespace
}  // namespace tutti::test
