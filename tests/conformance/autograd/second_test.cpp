#include <tutti/autograd.hpp>

#include "conformance/autograd/gradient_check.hpp"

// Derivatives of backwards. The backward of a linear forward is linear, and its backward is the
// forward. The weights of min and max are constant; those of product are not.

namespace tutti::test {
namespace {

class AutogradSecond : public testing::TestWithParam<World> {
 protected:
  void on_groups(const std::function<void(ProcessGroup& group)>& body) {
    on_group_and_parts(GetParam(), body);
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, AutogradSecond, testing::ValuesIn(worlds()), CaseName());

/// The backward is a linear map; its backward is the adjoint, whose backward is the map again.
void expect_second(ProcessGroup& group, const autograd::Differentiable& first, const Shape& in) {
  const auto back = [&](ProcessGroup& g, const ConstTensorView& c) { return first.back(g, c); };
  expect_adjoint(group, first.value.shape(), back);
  const Buffer c = put(group, random_numbers(first.value.shape().numel(), group.rank(), 37),
                       first.value.shape());
  const auto second = first.back(group, c);
  EXPECT_EQ(second.value.shape(), in);
  const Buffer v = put(group, random_numbers(in.numel(), group.rank(), 38), in);
  const auto third = second.back(group, v);
  EXPECT_EQ(numbers(group, third.back(group, c).value), numbers(group, second.value));
}

/// Also, the backward of the backward is the forward.
void expect_second_is_forward(ProcessGroup& group, const autograd::Differentiable& first,
                              const ConstTensorView& x) {
  expect_second(group, first, x.shape);
  const Buffer c =
      put(group, random_numbers(first.value.shape().numel(), 0, 37), first.value.shape());
  const auto second = first.back(group, c).back(group, x);
  EXPECT_EQ(numbers(group, second.value), numbers(group, first.value));
}

TEST_P(AutogradSecond, TheBackwardOfAGatherIsAReduceScatterWithTheBackwardOfOne) {
  on_groups([](ProcessGroup& group) {
    for (const Layout& layout : uneven_layouts(group.size())) {
      const Shape shape = own_rows(group, layout);
      const Buffer x = put(group, random_numbers(shape.numel(), group.rank(), 31), shape);
      for (const auto grad : {GradScale::sum, GradScale::mean, GradScale::local_slice}) {
        const auto first = autograd::all_gather_rows(group, x, grad);
        expect_second(group, first, shape);
        if (grad == GradScale::sum) expect_second_is_forward(group, first, x);
      }
    }
  });
}

TEST_P(AutogradSecond, TheBackwardOfALinearReductionHasTheForwardAsBackward) {
  on_groups([](ProcessGroup& group) {
    const int root = group.size() - 1;
    const Buffer x = put(group, random_numbers(3, group.rank(), 32));
    for (const ReduceOp op : linear_ops(group)) {
      SCOPED_TRACE(name_of(op.kind));
      expect_second_is_forward(group, autograd::all_reduce(group, x, op), x);
      expect_second_is_forward(group, autograd::reduce(group, x, root, op), x);
      const RowLayout rows(uneven_layouts(group.size()).back());
      const Buffer whole = put(group, random_numbers(rows.total(), group.rank(), 33));
      expect_second_is_forward(group, autograd::reduce_scatter_rows(group, whole, rows, op), whole);
    }
  });
}

TEST_P(AutogradSecond, TheBackwardOfWhatMovesArraysHasTheForwardAsBackward) {
  on_groups([](ProcessGroup& group) {
    const int root = group.size() - 1;
    const Buffer x = put(group, random_numbers(3, group.rank(), 34));
    expect_second_is_forward(group, autograd::broadcast(group, x, root), x);
    expect_second_is_forward(group, autograd::gather_rows(group, x, root), x);
    const RowLayout layout(uneven_layouts(group.size()).back());
    const bool at_root = group.rank() == root;
    const Buffer whole = put(group, random_numbers(at_root ? layout.total() : 0, group.rank(), 39));
    expect_second_is_forward(
        group, autograd::scatter_rows(group, whole, at_root ? layout : RowLayout(), root), whole);
    std::vector<int> to;
    std::vector<std::int64_t> rows;
    for (int r = 0; r < group.size(); ++r) {
      to.push_back((r + 1) % group.size());
      rows.push_back((group.rank() + r) % 3);
    }
    expect_second_is_forward(group, autograd::permute(group, x, to), x);
    const Buffer blocks = put(group, random_numbers(total(rows), group.rank(), 40));
    expect_second_is_forward(group, autograd::all_to_all_rows(group, blocks, rows, rows), blocks);
  });
}

/// The two halves of the direction in which the input and the gradient are moved.
std::pair<Numbers, Numbers> halves(ProcessGroup& group, const ConstTensorView& both) {
  const Numbers all = numbers(group, both);
  const auto middle = all.begin() + std::ssize(all) / 2;
  return {{all.begin(), middle}, {middle, all.end()}};
}
Tensor joined(ProcessGroup& group, const Numbers& first, const Numbers& second) {
  Tensor all(group.memory(), {std::ssize(first) + std::ssize(second)}, DType::f64);
  Numbers both = first;
  both.insert(both.end(), second.begin(), second.end());
  group.memory().copy(all.data(), both.data(), all.bytes(), {});
  return all;
}

/// x and c -> the gradient by x, if the gradient by all_reduce(x) is c.
struct Gradient {
  Tensor value;
};
Gradient gradient_of_both(ProcessGroup& group, const ConstTensorView& both, ReduceOp op) {
  const auto [x, c] = halves(group, both);
  const Buffer in = put(group, x);
  const Buffer by_value = put(group, c);
  return {autograd::all_reduce(group, in, op).back(group, by_value).value};
}

TEST_P(AutogradSecond, TheWeightsOfAMaximumDoNotMove) {
  on_groups([](ProcessGroup& group) {
    const Numbers both = random_numbers(6, group.rank(), 35);
    expect_adjoint_at(
        group, both, {6},
        [](ProcessGroup& g, const ConstTensorView& at) {
          return gradient_of_both(g, at, ReduceOp::max);
        },
        [&](const Gradient&, const ConstTensorView& v) {
          const Buffer x = put(group, {both.begin(), both.begin() + 3});
          const Buffer c = put(group, {both.begin() + 3, both.end()});
          const auto at = autograd::all_reduce(group, x, ReduceOp::max);
          const auto gradient = at.back(group, c);
          return joined(group, Numbers(3, 0.0), numbers(group, gradient.back(group, v).value));
        });
  });
}

}  // namespace
}  // namespace tutti::test
