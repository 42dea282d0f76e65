#pragma once

#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <type_traits>
#include <vector>

#include <tutti/half.hpp>
#include <tutti/losses/clip.hpp>
#include <tutti/losses/siglip.hpp>
#include <tutti/losses/sup_con.hpp>

#include "support/ranks.hpp"
#include "unit/losses/feature_reference.hpp"

// Calls of losses over features on ranks that are threads.

namespace tutti::test {

enum class FeatureKind { clip, siglip, sup_con };

struct FeatureSetup {
  FeatureKind kind = FeatureKind::clip;
  double scale = 1, bias = 0, smoothing = 0;
  GradScale grad_scale = GradScale::mean;
  losses::FeatureEngine engine{};
};

inline std::unique_ptr<losses::FeatureLoss> make_feature_loss(const FeatureSetup& s) {
  switch (s.kind) {
    case FeatureKind::clip:
      return std::make_unique<losses::Clip>(losses::ClipOptions{.logit_scale = s.scale,
                                                                .label_smoothing = s.smoothing,
                                                                .grad_scale = s.grad_scale,
                                                                .engine = s.engine});
    case FeatureKind::siglip:
      return std::make_unique<losses::SigLip>(losses::SigLipOptions{
          .logit_scale = s.scale, .bias = s.bias, .grad_scale = s.grad_scale, .engine = s.engine});
    case FeatureKind::sup_con:
      break;
  }
  auto loss = std::make_unique<losses::SupCon>(losses::SupConOptions{
      .temperature = 1 / s.scale, .grad_scale = s.grad_scale, .engine = s.engine});
  loss->set_logit_scale(s.scale);  // 1 / (1 / scale) may be another number.
  return loss;
}

/// Rounds a feature.
template <typename T>
T feature_of(double x) {
  if constexpr (std::is_arithmetic_v<T>)
    return static_cast<T>(x);
  else
    return T(static_cast<float>(x));
}

/// A feature as a double.
template <typename T>
double number_of(T x) {
  if constexpr (std::is_arithmetic_v<T>)
    return static_cast<double>(x);
  else
    return static_cast<double>(static_cast<float>(x));
}

/// Rows [first, first + count) of a call, with features of type T.
template <typename T>
struct FeaturePart {
  std::vector<T> anchors{}, candidates{};
  std::vector<std::int64_t> labels{};
  std::vector<double> weights{};
  std::int64_t dims = 1;
  bool weighted = false;

  FeaturePart(const FeatureCall& call, std::int64_t first, std::int64_t count)
      : dims(call.dims), weighted(!call.weights.empty()) {
    const auto take = [&](auto& to, const auto& from, std::int64_t width) {
      for (auto i = first * width; i < (first + count) * width; ++i) {
        using To = typename std::remove_reference_t<decltype(to)>::value_type;
        to.push_back(feature_of<To>(static_cast<double>(from[static_cast<std::size_t>(i)])));
      }
    };
    take(anchors, call.anchors, dims);
    take(candidates, call.candidates, dims);
    take(labels, call.labels, 1);
    if (weighted) take(weights, call.weights, 1);
  }
  losses::FeatureBatch batch(FeatureKind kind) const {
    losses::FeatureBatch batch;
    const Shape shape{std::ssize(labels), dims};
    batch.anchors = view(std::span(anchors), shape);
    if (kind == FeatureKind::sup_con)
      batch.labels = labels;
    else
      batch.candidates = view(std::span(candidates), shape);
    if (weighted) batch.weight = weights;
    return batch;
  }
};

/// The result of all ranks, with the rows of all ranks.
template <typename T>
struct FeatureOutcome {
  double loss = 0, scale = 0, bias = 0;
  std::vector<T> anchors{}, candidates{};
  bool operator==(const FeatureOutcome&) const = default;
};

template <typename T>
void append_gradients(FeatureOutcome<T>& to, const losses::FeatureResult& result) {
  const auto append = [](std::vector<T>& all, const Tensor& grad) {
    if (grad.bytes() == 0) return;
    const auto values = grad.template values<T>();
    all.insert(all.end(), values.begin(), values.end());
  };
  append(to.anchors, result.grad_anchors);
  append(to.candidates, result.grad_candidates);
  to.loss = result.loss;
  to.scale = result.grad_logit_scale;
  to.bias = result.grad_bias;
}

using FeatureSplit = std::vector<std::int64_t>;

/// Calls a loss on the ranks of `world`; split[rank] are numbers of rows.
template <typename T>
FeatureOutcome<T> run_feature_call(const World& world, const FeatureSetup& setup,
                                   const FeatureCall& call, const FeatureSplit& split) {
  PerRank<FeatureOutcome<T>> of_ranks(world.size);
  on_ranks(world, [&](ProcessGroup& group) {
    const auto first =
        std::accumulate(split.begin(), split.begin() + group.rank(), std::int64_t{0});
    const FeaturePart<T> part(call, first, split[static_cast<std::size_t>(group.rank())]);
    append_gradients(of_ranks[group.rank()],
                     (*make_feature_loss(setup))(group, part.batch(setup.kind)));
  });
  auto all = of_ranks[0];
  for (int r = 1; r < world.size; ++r) {
    const auto& other = of_ranks[r];
    EXPECT_EQ(other.loss, all.loss) << "rank " << r;
    EXPECT_EQ(other.scale, all.scale) << "rank " << r;
    EXPECT_EQ(other.bias, all.bias) << "rank " << r;
    all.anchors.insert(all.anchors.end(), other.anchors.begin(), other.anchors.end());
    all.candidates.insert(all.candidates.end(), other.candidates.begin(), other.candidates.end());
  }
  return all;
}

/// Draws a split of `rows` rows: any, with empty ranks, or as even as can be.
inline FeatureSplit draw_feature_split(std::mt19937_64& random, std::int64_t rows, int ranks) {
  FeatureSplit split(static_cast<std::size_t>(ranks));
  const auto kind = random() % 3;
  if (kind == 0)
    for (int r = 0; r < ranks; ++r)
      split[static_cast<std::size_t>(r)] = rows * (r + 1) / ranks - rows * r / ranks;
  else
    for (std::int64_t i = 0; i < rows; ++i)
      ++split[kind == 1 ? random() % split.size() : (random() % 2) * (split.size() - 1)];
  return split;
}

}  // namespace tutti::test
