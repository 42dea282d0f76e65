#include <tutti/adapters/torch.hpp>

#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "support/errors.hpp"
#include "support/ranks.hpp"

#include "torch_calls.hpp"

namespace tutti {
namespace {

using test::Derivatives;
using test::derivatives_at_once;
using test::expect_error;
using test::expect_near;
using test::inputs_of;
using test::leaf;
using test::pattern;
using test::Tensors;
using test::TorchCall;
using test::World;

struct Case {
  TorchCall call;
  World world;
};
std::string to_string(const Case& c) {
  return c.call.name + "_" + test::to_string(c.world);
}
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << to_string(c);
}
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const TorchCall& call : test::torch_calls())
    for (const World& world : test::worlds())
      if (world.size >= call.least_ranks) all.push_back({call, world});
  return all;
}

struct TorchAutograd : testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Calls, TorchAutograd, testing::ValuesIn(cases()),
                         [](const auto& of) { return to_string(of.param); });

TEST_P(TorchAutograd, EqualsOneProcessToTheSecondDerivative) {
  const TorchCall& call = GetParam().call;
  const Tensors inputs = inputs_of(call, GetParam().world.size);
  const Derivatives expected = derivatives_at_once(call, inputs);
  test::on_ranks(GetParam().world, [&](ProcessGroup& group) {
    test::expect_equals_one_process(call, group, inputs, expected);
  });
}

struct TorchWorlds : testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, TorchWorlds, testing::ValuesIn(test::worlds()), test::CaseName());

TEST_P(TorchWorlds, InputsAndGradientsNeedNotBeContiguous) {
  test::on_ranks(GetParam(), [&](ProcessGroup& group) {
    const at::Tensor x = leaf(pattern({3, 2}, 1));
    const at::Tensor out = libtorch::all_reduce(group, x.t());
    expect_near(out, pattern({3, 2}, 1).t() * group.size(), "value");
    out.sum().backward();  // Its gradient is one expanded number.
    expect_near(x.grad(), at::ones({3, 2}, at::kDouble) * group.size(), "gradient");
  });
}

TEST_P(TorchWorlds, RanksWhoseInputNeedsNoGradientTakePart) {
  test::on_ranks(GetParam(), [&](ProcessGroup& group) {
    at::Tensor x = pattern({2}, 0);
    x.set_requires_grad(group.rank() == 0);
    const at::Tensor out = libtorch::all_reduce(group, x);
    EXPECT_EQ(out.requires_grad(), true);
    (out * (group.rank() + 1)).sum().backward();
    const double sum = group.size() * (group.size() + 1) / 2.0;
    if (group.rank() == 0) expect_near(x.grad(), at::ones({2}, at::kDouble) * sum, "gradient");
  });
}

TEST_P(TorchWorlds, NothingIsRecordedUnderNoGrad) {
  test::on_ranks(GetParam(), [&](ProcessGroup& group) {
    const c10::AutoGradMode off(false);
    const at::Tensor x = leaf(pattern({2}, 0));
    const at::Tensor out = libtorch::all_reduce(group, x, ReduceOp::avg);
    EXPECT_EQ(out.grad_fn(), nullptr);
    expect_near(out, x, "value");
  });
}

TEST_P(TorchWorlds, IntegersAreRefusedAtTheForward) {
  test::on_ranks(GetParam(), [&](ProcessGroup& group) {
    const at::Tensor x = at::zeros({2}, at::kLong);
    expect_error(Errc::invalid_argument, {"i64"}, [&] { libtorch::all_reduce(group, x); });
    expect_error(Errc::invalid_argument, {"bor"},
                 [&] { libtorch::all_reduce(group, at::zeros({2}, at::kFloat), ReduceOp::bor); });
    expect_near(libtorch::all_reduce(group, pattern({2}, 0)), pattern({2}, 0) * group.size(),
                "afterwards");
  });
}

struct TorchDisagreement : testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, TorchDisagreement, testing::ValuesIn(test::worlds_that_compare()),
                         test::CaseName());

TEST_P(TorchDisagreement, InTheBackwardIsAnErrorOnEveryRank) {
  test::on_ranks(GetParam(), [&](ProcessGroup& group) {
    const at::Tensor x = leaf(pattern({2}, 0));
    const at::Tensor y = leaf(pattern({3}, 0));
    const at::Tensor a = libtorch::all_reduce(group, x);
    const at::Tensor b = libtorch::all_reduce(group, y);
    expect_error(Errc::mismatch, {"all_reduce", "[2]", "[3]"},
                 [&] { (group.rank() == 0 ? a : b).sum().backward(); });
  });
}

}  // namespace
}  // namespace tutti
