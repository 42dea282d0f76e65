#include <tutti/autograd.hpp>

#include <algorithm>

#include "conformance/autograd/gradient_check.hpp"
#include "conformance/observed.hpp"

// What differentiable collectives send, and that a group of one rank sends nothing.

namespace tutti::test {
namespace {

using autograd::GatherGrad;

class AutogradAlone : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, AutogradAlone, testing::ValuesIn(worlds({1})), CaseName());

TEST_P(AutogradAlone, EveryFunctionReturnsItsInputWithoutACall) {
  on_fresh_ranks(GetParam(), [](ProcessGroup& group) {
    const Buffer x = put(group, {1, 2, 3, 4}, {2, 2});
    const Buffer c = put(group, {5, 6, 7, 8}, {2, 2});
    const ConstTensorView in = x;
    const ConstTensorView grad = c;
    const auto expect_same = [&](const auto& at, const auto& vjp) {
      EXPECT_EQ(at.out.data(), in.data);
      EXPECT_EQ(at.out.shape(), in.shape);
      EXPECT_TRUE(at.out.is_input());
      const MaybeOwned gradient = vjp(at.context);
      EXPECT_EQ(gradient.data(), grad.data);
      EXPECT_EQ(gradient.shape(), grad.shape);
    };
    for (const auto how : {GatherGrad::sum, GatherGrad::local_slice, GatherGrad::mean})
      expect_same(autograd::all_gather_rows(group, in, how), [&](const auto& context) {
        return autograd::all_gather_rows_vjp(group, context, grad);
      });
    const auto layout = RowLayout::equal(1, 2);
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::premul(1)}) {
      expect_same(autograd::reduce_scatter_rows(group, in, layout, op), [&](const auto& context) {
        return autograd::reduce_scatter_rows_vjp(group, context, grad);
      });
      expect_same(autograd::reduce(group, in, 0, op),
                  [&](const auto& context) { return autograd::reduce_vjp(group, context, grad); });
    }
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::premul(1), ReduceOp::min,
                              ReduceOp::max, ReduceOp::product})
      expect_same(autograd::all_reduce(group, in, op), [&](const auto& context) {
        return autograd::all_reduce_vjp(group, context, grad);
      });
    expect_same(autograd::broadcast(group, in, 0),
                [&](const auto& context) { return autograd::broadcast_vjp(group, context, grad); });
    expect_same(autograd::gather_rows(group, in, 0), [&](const auto& context) {
      return autograd::gather_rows_vjp(group, context, grad);
    });
    expect_same(autograd::scatter_rows(group, in, &layout, 0), [&](const auto& context) {
      return autograd::scatter_rows_vjp(group, context, grad);
    });
    const std::vector<std::int64_t> rows{2};
    expect_same(autograd::all_to_all_rows(group, in, rows, rows), [&](const auto& context) {
      return autograd::all_to_all_rows_vjp(group, context, grad);
    });
    expect_same(autograd::permute(group, in, std::vector{0}),
                [&](const auto& context) { return autograd::permute_vjp(group, context, grad); });
    EXPECT_EQ(autograd::all_gather_no_grad(&group, in).data(), in.data);
    EXPECT_EQ(numbers(group, autograd::product_of_others(group, x).out), Numbers(4, 1.0));
    EXPECT_TRUE(group.trace().empty()) << to_string(group.trace()[0]);
  });
}

TEST_P(AutogradAlone, ItsOwnScaleIsAppliedWithoutACall) {
  on_fresh_ranks(GetParam(), [](ProcessGroup& group) {
    const Buffer x = put(group, {1, 2});
    const auto op = ReduceOp::premul(3);
    const auto all = autograd::all_reduce(group, x, op);
    EXPECT_EQ(numbers(group, all.out), (Numbers{3, 6}));
    EXPECT_EQ(numbers(group, autograd::all_reduce_vjp(group, all.context, x)), (Numbers{3, 6}));
    const auto one = autograd::reduce(group, x, 0, op);
    EXPECT_EQ(numbers(group, autograd::reduce_vjp(group, one.context, one.out)), (Numbers{9, 18}));
    const auto part = autograd::reduce_scatter_rows(group, x, RowLayout::equal(1, 2), op);
    EXPECT_EQ(numbers(group, autograd::reduce_scatter_rows_vjp(group, part.context, part.out)),
              (Numbers{9, 18}));
    EXPECT_TRUE(group.trace().empty());
  });
}

class AutogradCalls : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, AutogradCalls, testing::ValuesIn(worlds_of_several()), CaseName());

/// What was sent since the last question.
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
    const GatherOptions known{.layout = &layout};
    const Buffer x = put(group, Numbers(2));
    const Buffer c = put(group, Numbers(index(2 * group.size())));
    for (const auto grad : {GatherGrad::sum, GatherGrad::mean, GatherGrad::local_slice}) {
      const auto at = autograd::all_gather_rows(group, x, grad, known);
      EXPECT_EQ(sent.now(), Operations{Operation::all_gather});
      (void)autograd::all_gather_rows_vjp(group, at.context, c);
      EXPECT_EQ(sent.now(), grad == GatherGrad::local_slice
                                ? Operations{}
                                : Operations{Operation::reduce_scatter});
    }
    // Nobody knew the layout: the rows come with it.
    (void)autograd::all_gather_rows(group, x, GatherGrad::sum);
    EXPECT_EQ(sent.now().size(), comes_along(group) ? 1U : 2U);
    const auto at = autograd::reduce_scatter_rows(group, c, layout);
    EXPECT_EQ(sent.now(), Operations{Operation::reduce_scatter});
    (void)autograd::reduce_scatter_rows_vjp(group, at.context, x);
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
      (void)autograd::all_reduce_vjp(group, at.context, x);
      EXPECT_EQ(sent.now(), Operations{Operation::all_reduce});
    };
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::premul(2)})
      expect_calls(op, {Operation::all_reduce});
    for (const ReduceOp op : {ReduceOp::min, ReduceOp::max})
      expect_calls(op, {Operation::all_reduce, Operation::all_reduce});
    expect_calls(ReduceOp::product, {Operation::all_gather});
  });
}

TEST_P(AutogradCalls, WhatHasARootGoesBackInOneCall) {
  on_fresh_ranks(GetParam(), [](ProcessGroup& group) {
    Sent sent(group);
    const Buffer x = put(group, Numbers(3));
    const auto one = autograd::reduce(group, x, 1);
    EXPECT_EQ(sent.now(), Operations{Operation::reduce});
    (void)autograd::reduce_vjp(group, one.context, one.out);
    EXPECT_EQ(sent.now(), Operations{Operation::broadcast});
    const auto all = autograd::broadcast(group, x, 1);
    EXPECT_EQ(sent.now(), Operations{Operation::broadcast});
    (void)autograd::broadcast_vjp(group, all.context, all.out);
    EXPECT_EQ(sent.now(), Operations{Operation::reduce});
    const auto layout = RowLayout::equal(group.size(), 3);
    const auto rows = autograd::gather_rows(group, x, 1, {.layout = &layout});
    EXPECT_EQ(sent.now(), Operations{Operation::gather});
    (void)autograd::gather_rows_vjp(group, rows.context, rows.out);
    EXPECT_EQ(sent.now(), Operations{Operation::scatter});
  });
}

}  // namespace
}  // namespace tutti::test
