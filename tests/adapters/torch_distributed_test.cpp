#include <tutti/adapters/torch.hpp>

#include <cstdio>
#include <cstdlib>
#include <limits>
#include <sstream>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "support/errors.hpp"
#include "support/ranks.hpp"

#include "torch_calls.hpp"

// All numbers are small multiples of 1/4: sums are exact.

namespace tutti {
namespace {

using test::expect_error;
using test::leaf;
using test::pattern;
using test::World;

class TorchNames : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, TorchNames, testing::ValuesIn(test::worlds()), test::CaseName());

TEST_P(TorchNames, AGatherWithGradHasTheGradientOfItsScale) {
  test::on_ranks(GetParam(), [](ProcessGroup& group) {
    const int rank = group.rank();
    const std::int64_t total = group.size() * (group.size() + 1) / 2;
    const std::int64_t begin = rank * (rank + 1) / 2;
    const at::Tensor rows = pattern({total, 2}, 0);
    const at::Tensor x = leaf(rows.narrow(0, begin, rank + 1));
    const at::Tensor ids = at::arange(begin, begin + rank + 1);
    const at::Tensor all = libtorch::all_gather_with_grad(x, &group);
    EXPECT_TRUE(all.equal(rows)) << all;
    EXPECT_TRUE(libtorch::all_gather_no_grad(ids, &group).equal(at::arange(total)));
    EXPECT_EQ(all.is_same(x), group.size() == 1);
    EXPECT_EQ(libtorch::all_gather_no_grad(ids, &group).is_same(ids), group.size() == 1);
    const auto weights = [&](int r) {
      return pattern({total, 2}, r + 1).narrow(0, begin, rank + 1);
    };
    at::Tensor sum = weights(0);
    for (int r = 1; r < group.size(); ++r) sum = sum + weights(r);
    const auto expect_gradient = [&](GradScale scale, const at::Tensor& expected) {
      const at::Tensor own = leaf(x);
      (libtorch::all_gather_with_grad(own, &group, scale) * pattern({total, 2}, rank + 1))
          .sum()
          .backward();
      test::expect_near(own.grad(), expected, "gradient");
    };
    expect_gradient(GradScale::sum, sum);
    expect_gradient(GradScale::mean, sum / group.size());
    expect_gradient(GradScale::local_slice, weights(rank));
  });
}

// tests/torch/names_test.py compares these lines with the Python forms.
TEST_P(TorchNames, PrintTheirResultsForTheComparisonWithPython) {
  if (std::getenv("TUTTI_TEST_NAMES") == nullptr || GetParam().size > 3)
    GTEST_SKIP() << "names_test.py runs it on 1 to 3 ranks";
  test::on_ranks(GetParam(), [](ProcessGroup& group) {
    const int rank = group.rank();
    std::ostringstream lines;
    lines.precision(std::numeric_limits<double>::max_digits10);
    const auto add = [&](const char* name, const at::Tensor& values) {
      lines << "names " << group.size() << ' ' << rank << ' ' << name;
      const at::Tensor flat = values.detach().reshape({-1}).to(at::kDouble);
      for (std::int64_t i = 0; i < flat.numel(); ++i) lines << ' ' << flat[i].item<double>();
      lines << '\n';
    };
    const auto add_number = [&](const char* name, double value) {
      add(name, at::full({}, value, at::kDouble));
    };
    const auto rows = std::vector<std::int64_t>{2, 0, 3}.at(static_cast<std::size_t>(rank));
    const at::Tensor x = (at::arange(rows * 2, at::kDouble) + 10 * rank + 1).view({rows, 2}) / 4;
    for (const auto& [name, scale] :
         {std::pair("sum", GradScale::sum), std::pair("mean", GradScale::mean),
          std::pair("local_slice", GradScale::local_slice)}) {
      const at::Tensor local = leaf(x);
      const at::Tensor all = libtorch::all_gather_with_grad(local, &group, scale);
      (all * all * at::arange(all.size(0), at::kDouble).unsqueeze(1) * (rank + 1)).sum().backward();
      add("all_gather_with_grad", all);
      add(name, local.grad());
    }
    add("all_gather_no_grad",
        libtorch::all_gather_no_grad(at::full({rows}, rank, at::kLong), &group));
    const auto each =
        libtorch::gather_all_tensors(at::full({rank + 1, 3 - rank}, rank, at::kDouble), &group);
    for (const at::Tensor& one : each) add("gather_all_tensors", one);
    for (const char* op : {"sum", "Mean", "avg", "max", "MIN", "prod", "product"}) {
      const at::Tensor floats = at::arange(2, at::kDouble) - rank;
      libtorch::sync_ddp(floats, &group, op);
      add(op, floats);
      at::Tensor integers = at::arange(2, at::kLong) * 3 - 4 * rank;
      libtorch::sync_ddp(integers, &group, op);
      add(op, integers);
    }
    add_number("sync_ddp", libtorch::sync_ddp(0.1 * (rank + 1), &group));
    add_number("global_mean", global_mean(group, 0.1 * rank, static_cast<double>(rows)));
    const std::vector<NamedLoss> losses{{"b", 0.1 * rank, 1.0 + rank}, {"a", 0, 0}};
    for (const double mean : reduce_losses(group, losses)) add_number("reduce_losses", mean);
    LossAccumulator steps;
    steps.expect("late");
    for (int i = 0; i <= rank; ++i) steps.add("early", 0.1 * i, i + rank);
    if (rank == 0) steps.add("late", 0.7, 3);
    for (const auto& [name, mean] : steps.reduce(group)) add_number(name.c_str(), mean);
    for (const auto& [name, mean] : steps.reduce(group)) add_number(name.c_str(), mean);
    std::fputs(lines.str().c_str(), stdout);
  });
}

TEST_P(TorchNames, AStackedGatherSumsTheGradientsOverTheRanks) {
  test::on_ranks(GetParam(), [](ProcessGroup& group) {
    const int size = group.size();
    const at::Tensor x = leaf(pattern({2, 3}, group.rank()));
    const auto weights = [&](int rank) { return pattern({size, 2, 3}, rank + 1); };
    at::Tensor sum = weights(0);
    for (int rank = 1; rank < size; ++rank) sum = sum + weights(rank);
    const at::Tensor all = libtorch::all_gather_ddp_if_available(x, &group, true);
    for (int rank = 0; rank < size; ++rank) EXPECT_TRUE(all[rank].equal(pattern({2, 3}, rank)));
    (all * weights(group.rank())).sum().backward();
    EXPECT_TRUE(x.grad().equal(sum[group.rank()])) << x.grad();
    const at::Tensor again = leaf(x);
    (libtorch::AllGatherGrad::apply(again, &group) * weights(group.rank())).sum().backward();
    EXPECT_TRUE(again.grad().equal(x.grad()));
    const at::Tensor plain = libtorch::all_gather_ddp_if_available(x, &group);
    EXPECT_TRUE(plain.equal(all));
    EXPECT_FALSE(plain.requires_grad());
    EXPECT_EQ(libtorch::all_gather_ddp_if_available(at::zeros({2}, at::kLong), &group).sizes(),
              at::IntArrayRef({size, 2}));
  });
}

TEST_P(TorchNames, GatherAllTensorsKeepsTheGraphOfTheRanksOwn) {
  test::on_ranks(GetParam(), [](ProcessGroup& group) {
    const auto of_rank = [](int rank) { return pattern({rank, 2 * rank + 1}, rank); };
    const at::Tensor x = leaf(of_rank(group.rank()).t());
    const auto all = libtorch::gather_all_tensors(x * 2, &group);
    ASSERT_EQ(std::ssize(all), group.size());
    at::Tensor loss = at::zeros({}, at::kDouble);
    for (int rank = 0; rank < group.size(); ++rank) {
      const at::Tensor& each = all[static_cast<std::size_t>(rank)];
      EXPECT_TRUE(each.equal(of_rank(rank).t() * 2)) << each;
      EXPECT_EQ(each.requires_grad(), rank == group.rank());
      loss = loss + each.sum();
    }
    loss.backward();
    EXPECT_TRUE(x.grad().equal(at::full(x.sizes(), 2, at::kDouble))) << x.grad();
  });
}

TEST_P(TorchNames, SyncReducesInPlaceByNameInAnyCase) {
  test::on_ranks(GetParam(), [](ProcessGroup& group) {
    const int n = group.size();
    const auto expect_reduced = [&](const libtorch::SyncOp& op, double first, double second) {
      const at::Tensor x = (at::arange(2, at::kDouble) + 1) * (group.rank() + 1);
      EXPECT_TRUE(libtorch::sync_ddp(x, &group, op).is_same(x));
      EXPECT_EQ(x[0].item<double>(), first);
      EXPECT_EQ(x[1].item<double>(), second);
    };
    const double sum = n * (n + 1) / 2.0;
    expect_reduced({}, sum, 2 * sum);
    for (const char* name : {"sum", "Sum", "SUM"}) expect_reduced(name, sum, 2 * sum);
    for (const char* name : {"mean", "Mean", "avg", "AVG"})
      expect_reduced(name, sum / n, 2 * sum / n);
    for (const char* name : {"max", "MAX"}) expect_reduced(name, n, 2 * n);
    for (const char* name : {"min", "Min"}) expect_reduced(std::string(name), 1, 2);
    const double product = std::tgamma(n + 1);
    for (const char* name : {"prod", "Product"})
      expect_reduced(name, product, std::ldexp(product, n));
    expect_reduced(ReduceOp::premul(0.5), sum / 2, sum);
    const at::Tensor integers = at::full({1}, group.rank() == 0 ? -3 : 0, at::kLong);
    libtorch::sync_ddp(integers, &group, "mean");
    EXPECT_EQ(integers.item<std::int64_t>(), -3 / n);
    EXPECT_EQ(libtorch::sync_ddp(group.rank() + 1, &group, "max"), n);
    EXPECT_EQ(libtorch::sync_ddp_if_available(0.5F, &group), 0.5 * n);
  });
}

TEST(TorchNamesArguments, AnUnknownNameOfAReductionIsRefusedWithThoseThatThereAre) {
  for (const char* name :
       {"", "medain", "sum ", "summe", "premul_sum", "none", "band", "m\xC3\x84X"})
    expect_error(
        Errc::invalid_argument,
        {"'" + std::string(name) + "' is unknown", "sum, mean, avg, max, min, prod, product"},
        [&] { libtorch::SyncOp{name}; });
}

TEST(TorchNamesArguments, WithoutAGroupSomeReturnTheirInputAndTheOthersSayWhatToDo) {
  const at::Tensor x = leaf(pattern({2}, 0));
  EXPECT_TRUE(libtorch::sync_ddp_if_available(x, nullptr, "mean").is_same(x));
  EXPECT_EQ(libtorch::sync_ddp_if_available(7, nullptr, "mean"), 7);
  for (const bool sync_grads : {false, true})
    EXPECT_TRUE(libtorch::all_gather_ddp_if_available(x, nullptr, sync_grads).is_same(x));
  const auto expect_refused = [&](const char* name, const auto& call, const auto&... more) {
    expect_error(Errc::not_initialized, {name, "the group is null", "init()"},
                 [&] { call(x, nullptr, more..., CallOptions()); });
  };
  expect_refused("all_gather_with_grad", libtorch::all_gather_with_grad, GradScale::sum);
  expect_refused("all_gather_no_grad", libtorch::all_gather_no_grad);
  expect_refused("AllGatherGrad", libtorch::AllGatherGrad::apply);
  expect_refused("gather_all_tensors", libtorch::gather_all_tensors);
  expect_refused(
      "sync_ddp", [](auto&&... arguments) { libtorch::sync_ddp(arguments...); },
      libtorch::SyncOp());
}

}  // namespace
}  // namespace tutti
