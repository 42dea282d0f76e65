#include <tutti/adapters/torch.hpp>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

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
using test::loss_of;
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

// The numerical derivative of the ranks' common result by one number of one rank.
TEST_P(TorchWorlds, GradientsAreFiniteDifferences) {
  // Central differences of a polynomial of degree 8; the error is about step^2 + 1e-16 / step.
  constexpr double step = 1e-5;
  constexpr double bound = 1e-7;
  for (const TorchCall& call : test::torch_calls()) {
    if (call.name != "all_reduce_product" && call.name != "all_gather_rows") continue;
    const Tensors inputs = inputs_of(call, GetParam().size);
    test::on_ranks(GetParam(), [&](ProcessGroup& group) {
      const at::Tensor x = leaf(inputs[static_cast<std::size_t>(group.rank())]);
      loss_of(call.on_ranks(group, x), group.rank()).backward();
      const auto total = [&](int moved, std::int64_t i, double by) {
        const c10::AutoGradMode off(false);
        at::Tensor here = x.detach().clone();
        if (moved == group.rank()) here.view({-1})[i].add_(by);
        std::vector<double> sum{loss_of(call.on_ranks(group, here), group.rank()).item<double>()};
        group.all_reduce(sum);
        return sum[0];
      };
      for (int rank = 0; rank < group.size(); ++rank)
        for (std::int64_t i = 0; i < inputs[static_cast<std::size_t>(rank)].numel(); ++i) {
          const double slope = (total(rank, i, step) - total(rank, i, -step)) / (2 * step);
          if (rank != group.rank()) continue;
          EXPECT_NEAR(x.grad().view({-1})[i].item<double>(), slope, bound) << call.name;
        }
    });
  }
}

// Computed by hand: rank s has G_s, the gradient of its loss by the gathered array.
TEST_P(TorchWorlds, TheGatherHasTheGradientThatWasAskedFor) {
  const int ranks = GetParam().size;
  const std::vector<std::int64_t> rows{1, 2, 0, 1};
  std::int64_t total = 0;
  for (int rank = 0; rank < ranks; ++rank) total += rows[static_cast<std::size_t>(rank)];
  const auto cotangent = [&](int rank) { return pattern({total, 2}, rank + 3); };
  at::Tensor sum = cotangent(0);
  for (int rank = 1; rank < ranks; ++rank) sum = sum + cotangent(rank);
  test::on_ranks(GetParam(), [&](ProcessGroup& group) {
    std::int64_t begin = 0;
    for (int rank = 0; rank < group.rank(); ++rank) begin += rows[static_cast<std::size_t>(rank)];
    const std::int64_t own = rows[static_cast<std::size_t>(group.rank())];
    const auto gradient = [&](GradScale grad) {
      const at::Tensor x = leaf(pattern({own, 2}, group.rank()));
      const at::Tensor all = libtorch::all_gather_rows(group, x, grad);
      (all * cotangent(group.rank())).sum().backward();
      return x.grad();
    };
    expect_near(gradient(GradScale::sum), sum.narrow(0, begin, own), "sum");
    expect_near(gradient(GradScale::mean), sum.narrow(0, begin, own) / ranks, "mean");
    expect_near(gradient(GradScale::local_slice), cotangent(group.rank()).narrow(0, begin, own),
                "local_slice");
  });
}

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

// Results of torch.distributed.nn.functional, recorded by record_torch_distributed.py.
struct Recorded {
  std::string_view name;
  int ranks;
  int rank;
  std::vector<std::int64_t> sizes;
  std::vector<double> in, weight, out, gradient;
};
const std::vector<Recorded>& recorded() {
  static const std::vector<Recorded> all{
#include "../data/torch/torch_distributed.inc"
  };
  return all;
}

at::Tensor as_tensor(const std::vector<double>& values, at::IntArrayRef sizes) {
  return at::tensor(values, at::kDouble).view(sizes);
}

at::Tensor call_by_name(std::string_view name, ProcessGroup& group, const at::Tensor& x) {
  constexpr int root = 1;
  const RowLayout equal = RowLayout::equal(group.size(), 2);
  const std::vector<std::int64_t> two(static_cast<std::size_t>(group.size()), 2);
  if (name == "all_gather") return libtorch::all_gather_rows(group, x, GradScale::sum);
  if (name == "all_reduce sum") return libtorch::all_reduce(group, x);
  if (name == "all_reduce avg") return libtorch::all_reduce(group, x, ReduceOp::avg);
  if (name == "all_reduce min") return libtorch::all_reduce(group, x, ReduceOp::min);
  if (name == "all_reduce max") return libtorch::all_reduce(group, x, ReduceOp::max);
  if (name == "all_reduce product") return libtorch::all_reduce(group, x, ReduceOp::prod);
  if (name == "reduce sum") return libtorch::reduce(group, x, root);
  if (name == "broadcast") return libtorch::broadcast(group, x, root);
  if (name == "gather") return libtorch::gather_rows(group, x, root);
  if (name == "scatter") return libtorch::scatter_rows(group, x, equal, root);
  if (name == "reduce_scatter sum") return libtorch::reduce_scatter_rows(group, x, equal);
  if (name == "reduce_scatter avg")
    return libtorch::reduce_scatter_rows(group, x, equal, ReduceOp::avg);
  if (name == "all_to_all") return libtorch::all_to_all_rows(group, x, two, two);
  ADD_FAILURE() << "no call of the name " << name;
  return x;
}

struct TorchDistributed : testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, TorchDistributed, testing::ValuesIn(test::worlds({2, 3})),
                         test::CaseName());

TEST_P(TorchDistributed, AgreesWhereThatLibraryIsRight) {
  for (const std::string_view name :
       {"all_gather", "all_reduce sum", "all_reduce avg", "reduce sum", "broadcast", "gather",
        "scatter", "reduce_scatter sum", "all_to_all"})
    test::on_ranks(GetParam(), [&](ProcessGroup& group) {
      const auto it = std::ranges::find_if(recorded(), [&](const Recorded& r) {
        return r.name == name && r.ranks == group.size() && r.rank == group.rank();
      });
      ASSERT_NE(it, recorded().end()) << name << " was not recorded";
      const std::string what(name);
      const at::Tensor x = leaf(as_tensor(it->in, it->sizes));
      const at::Tensor out = call_by_name(name, group, x);
      if (out.numel() == 0) {  // Not root: torch returns an undefined array there.
        out.sum().backward();
      } else {
        expect_near(out.view({-1}), as_tensor(it->out, {-1}), what);
        (as_tensor(it->weight, out.sizes()) * out * out).sum().backward();
      }
      expect_near(x.grad(), as_tensor(it->gradient, it->sizes), what);
    });
}

Tensors combined(std::string_view name, const Tensors& xs) {
  const at::Tensor all = at::stack(xs);
  if (name == "all_reduce min") return Tensors(xs.size(), all.amin(0));
  if (name == "all_reduce max") return Tensors(xs.size(), all.amax(0));
  if (name == "all_reduce product") return Tensors(xs.size(), all.prod(0));
  return all.mean(0).split(2);  // reduce_scatter avg
}

// Differentiates the sum of all ranks' losses in one process and compares with the record.
TEST_P(TorchDistributed, IsTheExactAdjointWhereThatLibraryIsWrong) {
  for (const std::string name :
       {"all_reduce min", "all_reduce max", "all_reduce product", "reduce_scatter avg"}) {
    std::vector<const Recorded*> ranks;
    for (const Recorded& r : recorded())
      if (r.name == name && r.ranks == GetParam().size) ranks.push_back(&r);
    ASSERT_EQ(std::ssize(ranks), GetParam().size) << name;
    Tensors xs;
    for (const Recorded* r : ranks) xs.push_back(leaf(as_tensor(r->in, r->sizes)));
    const Tensors outs = combined(name, xs);
    at::Tensor losses = at::zeros({}, at::kDouble);
    for (std::size_t rank = 0; rank < ranks.size(); ++rank)
      losses = losses +
               (as_tensor(ranks[rank]->weight, outs[rank].sizes()) * outs[rank] * outs[rank]).sum();
    const Tensors exact = torch::autograd::grad({losses}, xs);
    bool differs = false;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      expect_near(outs[rank].reshape({-1}), as_tensor(ranks[rank]->out, {-1}), name);
      const at::Tensor error = exact[rank] - as_tensor(ranks[rank]->gradient, xs[rank].sizes());
      differs = differs || error.abs().max().item<double>() > 1e-3;
    }
    EXPECT_TRUE(differs) << name << " was right when it was recorded: compare with it";
    test::on_ranks(GetParam(), [&](ProcessGroup& group) {
      const auto rank = static_cast<std::size_t>(group.rank());
      const at::Tensor x = leaf(xs[rank]);
      const at::Tensor out = call_by_name(name, group, x);
      (as_tensor(ranks[rank]->weight, out.sizes()) * out * out).sum().backward();
      expect_near(x.grad(), exact[rank], name);
    });
  }
}

}  // namespace
}  // namespace tutti
