#include <tutti/adapters/torch/losses.hpp>

#include <string>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/sin.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <tutti/losses/cross_entropy.hpp>
#include <tutti/losses/focal.hpp>
#include <tutti/losses/recall_at_quantile.hpp>
#include <tutti/losses/smooth_ap.hpp>

#include "support/errors.hpp"
#include "support/ranks.hpp"

namespace tutti {
namespace {

using losses::Batch;
using losses::LossResult;

/// Rank r has 6 - 3 r rows, so the third rank has none. The logits are not contiguous.
struct Rows {
  explicit Rows(int rank)
      : count(6 - 3 * rank),
        logits(at::sin(at::arange(3 * count, at::kDouble) * 1.7 + rank).view({3, count}).t()),
        targets(at::arange(count, at::kLong).remainder(3)),
        weights(at::arange(count, at::kDouble) + 1) {}
  std::int64_t count;
  at::Tensor logits, targets, weights;
};

/// The node `loss` of `leaf` has the value of `expected`, and its backward multiplies the gradient.
void expect_node(const at::Tensor& loss, const at::Tensor& leaf, LossResult expected,
                 const std::string& what) {
  EXPECT_EQ(loss.item<double>(), expected.loss) << what;
  EXPECT_GT(expected.loss, 0) << what;
  (loss * 3).backward();
  EXPECT_TRUE(leaf.grad().equal(libtorch::to_torch(std::move(expected.grad)) * 3)) << what;
}

TEST(TorchLosses, EachIsANodeOfTheGraph) {
  test::on_ranks({"local", 3}, [](ProcessGroup& group) {
    const Rows rows(group.rank());
    const at::Tensor x = rows.logits.contiguous();
    const auto leaf = [&] { return rows.logits.detach().set_requires_grad(true); };
    const Batch batch{libtorch::view(x), libtorch::view(rows.targets)};
    const auto ranking = [&](auto loss, auto same, const std::string& what) {
      const at::Tensor in = leaf();
      expect_node(libtorch::loss_of(group, loss, in, rows.targets), in, same(group, batch), what);
    };
    using namespace losses;  // NOLINT(google-build-using-namespace)
    ranking(SmoothAp({.classes = 3}), SmoothAp({.classes = 3}), "SmoothAp");
    const RecallAtQuantileOptions recall{.classes = 3, .quantile = 0.4};
    ranking(RecallAtQuantile(recall), RecallAtQuantile(recall), "RecallAtQuantile");
    ranking(CrossEntropy({.classes = 3}), CrossEntropy({.classes = 3}), "CrossEntropy");

    SoftmaxFocal focal;
    at::Tensor in = leaf();
    expect_node(libtorch::loss_of(group, focal, in, rows.targets), in, focal(group, batch),
                "SoftmaxFocal");

    SmoothAp weighted({.classes = 3});
    SmoothAp same({.classes = 3});
    Batch with_weights = batch;
    with_weights.weight = libtorch::view(rows.weights);
    in = leaf();
    const at::Tensor loss = libtorch::loss_of(in, [&](const ConstTensorView& logits) {
      auto of_leaf = with_weights;
      of_leaf.logits = logits;
      return weighted(group, of_leaf);
    });
    expect_node(loss, in, same(group, with_weights), "weights");
  });
}

TEST(TorchLosses, FloatsGiveAFloatAndASecondDerivativeIsRefused) {
  const Rows rows(0);
  const at::Tensor x = rows.logits.to(at::kHalf).set_requires_grad(true);
  losses::SmoothAp smooth_ap({.classes = 3, .temperature = 1});
  const at::Tensor loss = libtorch::loss_of(x, [&](const ConstTensorView& logits) {
    return smooth_ap({logits, libtorch::view(rows.targets)});
  });
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  // The factor of a GradScaler is no number of f16.
  const auto scaled = torch::autograd::grad({loss * 65536}, {x}, {}, true);
  EXPECT_TRUE(scaled[0].isfinite().all().item<bool>());
  const auto first = torch::autograd::grad({loss}, {x}, {}, true, true);
  EXPECT_EQ(first[0].scalar_type(), at::kHalf);
  test::expect_error(Errc::unsupported, {"loss_of has no second derivative"},
                     [&] { first[0].sum().backward(); });
}

}  // namespace
}  // namespace tutti
