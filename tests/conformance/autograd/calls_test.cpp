#include <tutti/autograd.hpp>

#include <cstring>

#include "conformance/autograd/gradient_check.hpp"
#include "conformance/observed.hpp"

// The calls that differentiable collectives make, and the results in a group of one rank.

namespace tutti::test {
namespace {

class AutogradAlone : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, AutogradAlone, testing::ValuesIn(worlds({1})), CaseName());

TEST_P(AutogradAlone, EveryFunctionAndItsTransposesGiveTheirInputsBits) {
  on_fresh_ranks(GetParam(), [](ProcessGroup& group) {
    const Buffer x = put(group, {0.1, -0.0, 3e-310, 4}, {2, 2});
    const Buffer c = put(group, {5, 6, 7, 1e300}, {2, 2});
    const auto expect_bits = [&](const autograd::Differentiable& at, const Buffer& of) {
      EXPECT_EQ(at.value.shape(), (Shape{2, 2}));
      const Numbers got = numbers(group, at.value);
      const Numbers want = numbers(group, of);
      EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(double)), 0);
    };
    const auto expect_same = [&](const autograd::Differentiable& at) {
      expect_bits(at, x);
      expect_bits(at.back(group, c), c);
      expect_bits(at.back(group, c).back(group, x), x);
    };
    for (const auto how : {GradScale::sum, GradScale::local_slice, GradScale::mean})
      expect_same(autograd::all_gather_rows(group, x, how));
    const auto layout = RowLayout::equal(1, 2);
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::premul(1)}) {
      expect_same(autograd::reduce_scatter_rows(group, x, layout, op));
      expect_same(autograd::reduce(group, x, 0, op));
    }
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::premul(1), ReduceOp::min,
                              ReduceOp::max, ReduceOp::prod})
      expect_same(autograd::all_reduce(group, x, op));
    expect_same(autograd::broadcast(group, x, 0));
    expect_same(autograd::gather_rows(group, x, 0));
    expect_same(autograd::scatter_rows(group, x, layout, 0));
    const std::vector<std::int64_t> rows{2};
    expect_same(autograd::all_to_all_rows(group, x, rows, rows));
    expect_same(autograd::permute(group, x, std::vector{0}));
  });
}

TEST_P(AutogradAlone, ItsOwnScaleIsApplied) {
  on_fresh_ranks(GetParam(), [](ProcessGroup& group) {
    const Buffer x = put(group, {1, 2});
    const auto op = ReduceOp::premul(3);
    const auto all = autograd::all_reduce(group, x, op);
    EXPECT_EQ(numbers(group, all.value), (Numbers{3, 6}));
    EXPECT_EQ(numbers(group, all.back(group, x).value), (Numbers{3, 6}));
    const auto one = autograd::reduce(group, x, 0, op);
    EXPECT_EQ(numbers(group, one.back(group, one.value).value), (Numbers{9, 18}));
    const auto part = autograd::reduce_scatter_rows(group, x, RowLayout::equal(1, 2), op);
    EXPECT_EQ(numbers(group, part.back(group, part.value).value), (Numbers{9, 18}));
  });
}

class AutogradCalls : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, AutogradCalls, testing::ValuesIn(worlds_of_several()), CaseName());

/// Calls since the previous query.
class Sent {
 public:
  explicit Sent(ProcessGroup& group) : group_(group) {}
  std::vector<Operation> now() {
    const Trace trace = group_.trace();
    std::vector<Operation> sent;
    for (std::size_t i = seen_; i < trace.size(); ++i) sent.push_back(trace[i].operation);
    seen_ = trace.size();
    return sent;
  }

 private:
  ProcessGroup& group_;
  std::size_t seen_ = 0;
};

using Operations = std::vector<Operation>;

TEST_P(AutogradCalls, AGatherIsOneCallAndSoIsItsAdjoint) {
  on_fresh_ranks(GetParam(), [](ProcessGroup& group) {
    Sent sent(group);
    const auto layout = RowLayout::equal(group.size(), 2);
    const Buffer x = put(group, Numbers(2));
    const Buffer c = put(group, Numbers(index(2 * group.size())));
    for (const auto grad : {GradScale::sum, GradScale::mean, GradScale::local_slice}) {
      const auto at = autograd::all_gather_rows(group, x, grad, layout);
      EXPECT_EQ(sent.now(), Operations{Operation::all_gather});
      (void)at.back(group, c);
      EXPECT_EQ(sent.now(), grad == GradScale::local_slice ? Operations{}
                                                           : Operations{Operation::reduce_scatter});
    }
    // The layout was unknown, so the message of sizes has the rows.
    (void)autograd::all_gather_rows(group, x, GradScale::sum);
    EXPECT_EQ(sent.now().size(), inlines(group) ? 1U : 2U);
    const auto at = autograd::reduce_scatter_rows(group, c, layout);
    EXPECT_EQ(sent.now(), Operations{Operation::reduce_scatter});
    (void)at.back(group, x);
    EXPECT_EQ(sent.now(), Operations{Operation::all_gather});
  });
}

TEST_P(AutogradCalls, AReductionIsOneCallEachWayAndAnExtremeCountsItsTies) {
  on_fresh_ranks(GetParam(), [](ProcessGroup& group) {
    Sent sent(group);
    const Buffer x = put(group, Numbers(3));
    const auto expect_calls = [&](ReduceOp op, const Operations& forward) {
      SCOPED_TRACE(name_of(op.kind));
      const auto at = autograd::all_reduce(group, x, op);
      EXPECT_EQ(sent.now(), forward);
      (void)at.back(group, x);
      EXPECT_EQ(sent.now(), Operations{Operation::all_reduce});
    };
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::premul(2)})
      expect_calls(op, {Operation::all_reduce});
    for (const ReduceOp op : {ReduceOp::min, ReduceOp::max})
      expect_calls(op, {Operation::all_reduce, Operation::all_reduce});
    expect_calls(ReduceOp::prod, {Operation::all_gather});
  });
}

TEST_P(AutogradCalls, WhatHasARootGoesBackInOneCall) {
  on_fresh_ranks(GetParam(), [](ProcessGroup& group) {
    Sent sent(group);
    const Buffer x = put(group, Numbers(3));
    const auto one = autograd::reduce(group, x, 1);
    EXPECT_EQ(sent.now(), Operations{Operation::reduce});
    (void)one.back(group, one.value);
    EXPECT_EQ(sent.now(), Operations{Operation::broadcast});
    const auto all = autograd::broadcast(group, x, 1);
    EXPECT_EQ(sent.now(), Operations{Operation::broadcast});
    (void)all.back(group, all.value);
    EXPECT_EQ(sent.now(), Operations{Operation::reduce});
    const auto layout = RowLayout::equal(group.size(), 3);
    const auto rows = autograd::gather_rows(group, x, 1, layout);
    EXPECT_EQ(sent.now(), Operations{Operation::gather});
    (void)rows.back(group, rows.value);
    EXPECT_EQ(sent.now(), Operations{Operation::scatter});
  });
}

TEST_P(AutogradCalls, ABackwardNamesTheForwardThatItIsAndSoDoesItsOwn) {
  on_fresh_ranks(GetParam(), [](ProcessGroup& group) {
    const Buffer x = put(group, Numbers(index(group.size())));
    const auto layout = RowLayout::equal(group.size(), 1);
    const std::vector<std::int64_t> rows(index(group.size()), 1);
    const auto expect_names = [&](const autograd::Differentiable& at, std::string_view back,
                                  std::string_view again) {
      EXPECT_EQ(at.back.collective(), back);
      const Buffer c =
          put(group, random_numbers(at.value.shape().numel(), group.rank(), 1), at.value.shape());
      EXPECT_EQ(at.back(group, c).back.collective(), again);
    };
    const auto sum = GradScale::sum;
    expect_names(autograd::all_gather_rows(group, x, sum), "reduce_scatter_rows",
                 "all_gather_rows");
    expect_names(autograd::all_gather_rows(group, x, GradScale::local_slice), "", "");
    expect_names(autograd::reduce_scatter_rows(group, x, layout), "all_gather_rows",
                 "reduce_scatter_rows");
    expect_names(autograd::all_to_all_rows(group, x, rows, rows), "all_to_all_rows",
                 "all_to_all_rows");
    expect_names(autograd::all_reduce(group, x), "all_reduce", "all_reduce");
    expect_names(autograd::reduce(group, x, 0), "broadcast", "reduce");
    expect_names(autograd::broadcast(group, x, 0), "reduce", "broadcast");
    expect_names(autograd::gather_rows(group, x, 0), "scatter_rows", "gather_rows");
  });
}

}  // namespace
}  // namespace tutti::test
