#include <random>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/losses/p_auc_at_budget.hpp>
#include <tutti/losses/smooth_ap.hpp>

#include "unit/losses/limited_memory.hpp"

// A loss needs memory for the rows, not for pairs of them: each runs in a process with limited
// address space.

namespace tutti::test {
namespace {

using losses::PAucAtBudget;
using losses::SmoothAp;

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
  losses::Batch batch(std::int64_t classes) const {
    return {{logits.data(), DType::f32, {std::ssize(targets), classes}}, targets};
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

// Checks the limit itself: without it the tests above could not fail.
TEST_F(LossMemory, TooLittleIsAnError) {
  const Rows rows(1'000'000, 1, 50'000);
  EXPECT_EXIT(run(SmoothAp(), rows.batch(1), 16 * megabyte), ExitedWithCode(2), "");
}

}  // namespace
}  // namespace tutti::test
