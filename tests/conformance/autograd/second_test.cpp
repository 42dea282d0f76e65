#include <tutti/autograd.hpp>

#include "conformance/autograd/gradient_check.hpp"

// Derivatives of the vjps. Of a linear forward the vjp is linear, and its own vjp is the forward;
// min and max have weights that do not move, product has some that do.

namespace tutti::test {
namespace {

using autograd::GatherGrad;

class AutogradSecond : public testing::TestWithParam<World> {
 protected:
  void on_groups(const std::function<void(ProcessGroup& group)>& body) {
    on_group_and_parts(GetParam(), body);
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, AutogradSecond, testing::ValuesIn(worlds()), CaseName());

/// The gradient of `vjp`, a linear map from [shape], is `forward`.
template <typename Vjp, typename Forward>
void expect_transposed(ProcessGroup& group, const Shape& shape, const Vjp& vjp,
                       const Forward& forward) {
  expect_adjoint(
      group, shape, [&](ProcessGroup& g, const ConstTensorView& c) { return Linear{vjp(g, c)}; },
      [&](ProcessGroup& g, int, const ConstTensorView& v) { return forward(g, v); });
}

TEST_P(AutogradSecond, TheVjpOfAGatherIsAReduceScatterWithTheVjpOfOne) {
  on_groups([](ProcessGroup& group) {
    for (const Layout& layout : uneven_layouts(group.size())) {
      const Shape shape = own_rows(group, layout);
      const Buffer x = put(group, random_numbers(shape.numel(), group.rank(), 31), shape);
      for (const auto& [grad, op] : {std::pair(GatherGrad::sum, ReduceOp::sum),
                                     std::pair(GatherGrad::mean, ReduceOp::avg)}) {
        const auto first = autograd::all_gather_rows(group, x, grad);
        const autograd::ReduceScatterContext second{first.context.layout, op, first.out.shape(),
                                                    DType::f64};
        expect_transposed(
            group, first.out.shape(),
            [&](ProcessGroup& g, const ConstTensorView& c) {
              return autograd::all_gather_rows_vjp(g, first.context, c);
            },
            [&](ProcessGroup& g, const ConstTensorView& v) {
              return autograd::reduce_scatter_rows_vjp(g, second, v);
            });
      }
    }
  });
}

TEST_P(AutogradSecond, TheVjpOfALinearReductionHasTheForwardAsVjp) {
  on_groups([](ProcessGroup& group) {
    const int root = group.size() - 1;
    const Buffer x = put(group, random_numbers(3, group.rank(), 32));
    for (const ReduceOp op : linear_ops(group)) {
      SCOPED_TRACE(name_of(op.kind));
      const auto all = autograd::all_reduce(group, x, op);
      expect_transposed(
          group, equal_shape,
          [&](ProcessGroup& g, const ConstTensorView& c) {
            return autograd::all_reduce_vjp(g, all.context, c);
          },
          [&](ProcessGroup& g, const ConstTensorView& v) {
            return autograd::all_reduce(g, v, op).out;
          });
      const auto one = autograd::reduce(group, x, root, op);
      expect_transposed(
          group, one.out.shape(),
          [&](ProcessGroup& g, const ConstTensorView& c) {
            return autograd::reduce_vjp(g, one.context, c);
          },
          [&](ProcessGroup& g, const ConstTensorView& v) {
            return autograd::reduce(g, v, root, op).out;
          });
      const RowLayout rows(uneven_layouts(group.size()).back());
      const Buffer whole = put(group, random_numbers(rows.total(), group.rank(), 33));
      const auto part = autograd::reduce_scatter_rows(group, whole, rows, op);
      expect_transposed(
          group, part.out.shape(),
          [&](ProcessGroup& g, const ConstTensorView& c) {
            return autograd::reduce_scatter_rows_vjp(g, part.context, c);
          },
          [&](ProcessGroup& g, const ConstTensorView& v) {
            return autograd::reduce_scatter_rows(g, v, rows, op).out;
          });
    }
  });
}

TEST_P(AutogradSecond, TheVjpOfWhatMovesArraysHasTheForwardAsVjp) {
  on_groups([](ProcessGroup& group) {
    const int root = group.size() - 1;
    const Buffer x = put(group, random_numbers(3, group.rank(), 34));
    const auto spread = autograd::broadcast(group, x, root);
    expect_transposed(
        group, equal_shape,
        [&](ProcessGroup& g, const ConstTensorView& c) {
          return autograd::broadcast_vjp(g, spread.context, c);
        },
        [&](ProcessGroup& g, const ConstTensorView& v) {
          return autograd::broadcast(g, v, root).out;
        });
    const auto gathered = autograd::gather_rows(group, x, root);
    expect_transposed(
        group, gathered.out.shape(),
        [&](ProcessGroup& g, const ConstTensorView& c) {
          return autograd::gather_rows_vjp(g, gathered.context, c);
        },
        [&](ProcessGroup& g, const ConstTensorView& v) {
          return autograd::gather_rows(g, v, root).out;
        });
    std::vector<int> to;
    for (int r = 0; r < group.size(); ++r) to.push_back((r + 1) % group.size());
    const auto permuted = autograd::permute(group, x, to);
    expect_transposed(
        group, equal_shape,
        [&](ProcessGroup& g, const ConstTensorView& c) {
          return autograd::permute_vjp(g, permuted.context, c);
        },
        [&](ProcessGroup& g, const ConstTensorView& v) { return autograd::permute(g, v, to).out; });
  });
}

/// The two halves of what both a forward's input and its gradient are moved in.
std::pair<Numbers, Numbers> halves(ProcessGroup& group, const ConstTensorView& both) {
  const Numbers all = numbers(group, both);
  const auto middle = all.begin() + std::ssize(all) / 2;
  return {{all.begin(), middle}, {middle, all.end()}};
}
MaybeOwned joined(ProcessGroup& group, const Numbers& first, const Numbers& second) {
  Tensor all(group.memory(), {std::ssize(first) + std::ssize(second)}, DType::f64);
  Numbers both = first;
  both.insert(both.end(), second.begin(), second.end());
  group.memory().copy(all.data(), both.data(), all.bytes(), {});
  return all;
}
Numbers times(const Numbers& a, const Numbers& b) {
  Numbers out = a;
  for (std::size_t i = 0; i < out.size(); ++i) out[i] *= b[i];
  return out;
}

/// x and c -> all_reduce_vjp at x of c.
MaybeOwned vjp_of_both(ProcessGroup& group, const ConstTensorView& both, ReduceOp op) {
  const auto [x, c] = halves(group, both);
  const Buffer in = put(group, x);
  const Buffer by_out = put(group, c);
  const auto at = autograd::all_reduce(group, in, op);
  return autograd::all_reduce_vjp(group, at.context, by_out).take(group.memory());  // It ends here.
}

TEST_P(AutogradSecond, TheWeightsOfAMaximumDoNotMove) {
  on_groups([](ProcessGroup& group) {
    const Numbers both = random_numbers(6, group.rank(), 35);
    const auto forward = [](ProcessGroup& g, const ConstTensorView& at) {
      return Linear{vjp_of_both(g, at, ReduceOp::max)};
    };
    expect_adjoint_at(
        group, both, {6}, forward, [&](ProcessGroup& g, int, const ConstTensorView& v) {
          const Buffer x = put(g, {both.begin(), both.begin() + 3});
          const Buffer c = put(g, {both.begin() + 3, both.end()});
          const auto at = autograd::all_reduce(g, x, ReduceOp::max);
          const Numbers weights = g.size() == 1
                                      ? Numbers(3, 1.0)
                                      : numbers(g, std::as_const(at.context.weights).view());
          const auto sum = autograd::all_reduce(g, c);  // For its context.
          const Buffer by_sum = put(g, times(weights, numbers(g, v)));
          return joined(g, Numbers(3, 0.0),
                        numbers(g, autograd::all_reduce_vjp(g, sum.context, by_sum)));
        });
  });
}

TEST_P(AutogradSecond, TheWeightsOfAProductMoveWithTheOtherFactors) {
  on_groups([](ProcessGroup& group) {
    Numbers both = random_numbers(6, group.rank(), 36);
    if (group.rank() == 0) both[1] = 0;
    if (group.rank() <= 1) both[2] = 0;
    const auto forward = [](ProcessGroup& g, const ConstTensorView& at) {
      return Linear{vjp_of_both(g, at, ReduceOp::product)};
    };
    // all_reduce_vjp is others * sum, made of two forwards of the header.
    expect_adjoint_at(
        group, both, {6}, forward, [&](ProcessGroup& g, int, const ConstTensorView& v) {
          const Buffer x = put(g, {both.begin(), both.begin() + 3});
          const Buffer c = put(g, {both.begin() + 3, both.end()});
          const auto others = autograd::product_of_others(g, x);
          const auto sum = autograd::all_reduce(g, c);
          const Buffer by_others = put(g, times(numbers(g, sum.out), numbers(g, v)));
          const Buffer by_sum = put(g, times(numbers(g, others.out), numbers(g, v)));
          return joined(g,
                        numbers(g, autograd::product_of_others_vjp(g, others.context, by_others)),
                        numbers(g, autograd::all_reduce_vjp(g, sum.context, by_sum)));
        });
  });
}

}  // namespace
}  // namespace tutti::test
