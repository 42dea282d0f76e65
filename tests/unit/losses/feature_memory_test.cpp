#include <random>
#include <vector>

#include <tutti/losses/clip.hpp>
#include <tutti/losses/siglip.hpp>
#include <tutti/losses/sup_con.hpp>

#include "unit/losses/limited_memory.hpp"

// A loss over features needs memory for the rows, not for pairs of them: beside the caller's
// features there are the gradients, which are as large, about a hundred bytes for each row, and
// less than 4 MB for each thread in f32.

namespace tutti::test {
namespace {

using testing::ExitedWithCode;

struct FloatFeatures {
  std::int64_t rows;
  std::vector<float> anchors, candidates;
  std::vector<std::int64_t> labels;

  explicit FloatFeatures(std::int64_t count) : rows(count) {
    std::mt19937_64 random(5);
    std::normal_distribution<float> feature(0, 0.1F);
    for (auto* side : {&anchors, &candidates})
      for (std::int64_t i = 0; i < rows * 64; ++i) side->push_back(feature(random));
    for (std::int64_t i = 0; i < rows; ++i) labels.push_back(i / 2);
  }
  losses::FeatureBatch pairs() const {
    losses::FeatureBatch batch;
    batch.anchors = {anchors.data(), DType::f32, {rows, 64}};
    batch.candidates = {candidates.data(), DType::f32, {rows, 64}};
    return batch;
  }
  losses::FeatureBatch labelled() const {
    losses::FeatureBatch batch;
    batch.anchors = {anchors.data(), DType::f32, {rows, 64}};
    batch.labels = labels;
    return batch;
  }
  /// The gradient of one side.
  std::size_t bytes() const { return anchors.size() * sizeof(float); }
};

// The matrix of all pairs would be 151 MB.
TEST_F(LossMemory, LossesOverFeaturesKeepNoPairs) {
  const FloatFeatures f(6144);
  EXPECT_EXIT(run(losses::Clip({.logit_scale = 5}), f.pairs(), 2 * f.bytes() + 4 * megabyte),
              ExitedWithCode(0), "");
  EXPECT_EXIT(run(losses::SigLip(), f.pairs(), 2 * f.bytes() + 4 * megabyte), ExitedWithCode(0),
              "");
  EXPECT_EXIT(run(losses::SupCon(), f.labelled(), f.bytes() + 4 * megabyte), ExitedWithCode(0), "");
}

template <typename T>
losses::FeatureBatch wide_batch(const std::vector<T>& features, std::int64_t rows) {
  losses::FeatureBatch batch;
  batch.anchors = {features.data(), dtype_of<T>, {rows, 1024}};
  batch.candidates = batch.anchors;
  return batch;
}

// One thread at the dims up to which features.hpp states its memory; 1 MB is for the rows.
TEST_F(LossMemory, OfAThreadAt1024DimsIsThatOfThePage) {
  constexpr std::size_t rows = 512;
  const std::vector<float> floats(rows * 1024, 0.01F);
  const std::vector<double> doubles(rows * 1024, 0.01);
  EXPECT_EXIT(run(losses::Clip(), wide_batch(floats, rows), 2 * rows * 1024 * 4 + 5 * megabyte),
              ExitedWithCode(0), "");
  EXPECT_EXIT(run(losses::Clip(), wide_batch(doubles, rows), 2 * rows * 1024 * 8 + 7 * megabyte),
              ExitedWithCode(0), "");
}

// The matrix of all pairs would be 17 GB.
TEST_F(LossMemory, SlowLossesOf65536RowsKeepNoPairs) {
  const FloatFeatures f(65'536);
  EXPECT_EXIT(run(losses::SigLip(), f.pairs(), 2 * f.bytes() + 8 * megabyte), ExitedWithCode(0),
              "");
  EXPECT_EXIT(run(losses::Clip({.logit_scale = 5}), f.pairs(), 2 * f.bytes() + 12 * megabyte),
              ExitedWithCode(0), "");
  EXPECT_EXIT(run(losses::SupCon(), f.labelled(), f.bytes() + 12 * megabyte), ExitedWithCode(0),
              "");
}

}  // namespace
}  // namespace tutti::test
