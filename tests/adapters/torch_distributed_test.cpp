#include <tutti/adapters/torch.hpp>

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

TEST_P(TorchNames, AGatherWithGradHasTheRanksOwnSliceAsGradient) {
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
    const at::Tensor weights = pattern({total, 2}, rank + 1);
    (all * weights).sum().backward();
    EXPECT_TRUE(x.grad().equal(weights.narrow(0, begin, rank + 1))) << x.grad();
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

TEST(TorchNamesArguments, WithoutAGroupOneReturnsItsInputAndTheOthersSayWhatToDo) {
  const at::Tensor x = leaf(pattern({2}, 0));
  for (const bool sync_grads : {false, true})
    EXPECT_TRUE(libtorch::all_gather_ddp_if_available(x, nullptr, sync_grads).is_same(x));
  const auto expect_refused = [&](const char* name, const auto& call) {
    expect_error(Errc::not_initialized, {name, "the group is null", "init()"},
                 [&] { call(x, nullptr, CallOptions()); });
  };
  expect_refused("all_gather_with_grad", libtorch::all_gather_with_grad);
  expect_refused("all_gather_no_grad", libtorch::all_gather_no_grad);
  expect_refused("AllGatherGrad", libtorch::AllGatherGrad::apply);
  expect_refused("gather_all_tensors", libtorch::gather_all_tensors);
}

}  // namespace
}  // namespace tutti
