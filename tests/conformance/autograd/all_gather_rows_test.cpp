#include <tutti/autograd.hpp>

#include "conformance/autograd/gradient_check.hpp"
#include "conformance/observed.hpp"

// Differentiable collectives of rows between all ranks.

namespace tutti::test {
namespace {

class AutogradRows : public testing::TestWithParam<World> {
 protected:
  /// Runs for each layout, on the group and its sub-groups.
  void on_layouts(const std::function<void(ProcessGroup& group, const Layout& layout)>& body) {
    on_group_and_parts(GetParam(), [&](ProcessGroup& group) {
      for (const Layout& layout : uneven_layouts(group.size())) {
        SCOPED_TRACE("rows " + to_string(layout));
        body(group, layout);
      }
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, AutogradRows, testing::ValuesIn(worlds()), CaseName());

TEST_P(AutogradRows, TheSumOfAGatherIsItsAdjoint) {
  on_layouts([](ProcessGroup& group, const Layout& layout) {
    expect_adjoint(group, own_rows(group, layout), [](ProcessGroup& g, const ConstTensorView& x) {
      return autograd::all_gather_rows(g, x, GradScale::sum);
    });
  });
}

TEST_P(AutogradRows, MeanIsTheSumDividedByTheRanksAndLocalSliceTheOwnRows) {
  on_layouts([](ProcessGroup& group, const Layout& layout) {
    const Shape shape = own_rows(group, layout);
    const Numbers x = random_numbers(shape.numel(), group.rank(), 1);
    const auto gradient = [&](GradScale grad, const Numbers& by_out) {
      const Buffer in = put(group, x, shape);
      const auto at = autograd::all_gather_rows(group, in, grad);
      EXPECT_EQ(at.value.shape(), Shape({total(layout), 2}));
      const Buffer c = put(group, by_out, at.value.shape());
      return numbers(group, at.back(group, c).value);
    };
    const Numbers c = random_numbers(2 * total(layout), group.rank(), 2);
    const Numbers sum = gradient(GradScale::sum, c);
    const Numbers mean = gradient(GradScale::mean, c);
    const Numbers slice = gradient(GradScale::local_slice, c);
    ASSERT_EQ(slice.size(), x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      EXPECT_DOUBLE_EQ(mean[i], sum[i] / group.size());
      EXPECT_EQ(slice[i], c[static_cast<std::size_t>(2 * offset(layout, group.rank())) + i]);
    }
  });
}

// The contract of AllGradScale in PyTorch Lightning.
TEST_P(AutogradRows, WhatEachRankMultipliesByItsNumberHasTheSumOfTheNumbersAsGradient) {
  on_group_and_parts(GetParam(), [](ProcessGroup& group) {
    const Buffer x = put(group, Numbers(6, 1.0), {3, 2});
    const auto at = autograd::all_gather_rows(group, x, GradScale::sum);
    const Numbers by_out(static_cast<std::size_t>(at.value.shape().numel()), group.rank());
    const Buffer c = put(group, by_out, at.value.shape());
    const Tensor gradient = at.back(group, c).value;
    EXPECT_EQ(numbers(group, gradient), Numbers(6, group.size() * (group.size() - 1) / 2.0));
  });
}

TEST_P(AutogradRows, AKnownLayoutGivesTheSameGradients) {
  on_layouts([](ProcessGroup& group, const Layout& rows) {
    const RowLayout layout(rows);
    const Shape shape = own_rows(group, rows);
    const Buffer x = put(group, random_numbers(shape.numel(), group.rank(), 3), shape);
    const auto plain = autograd::all_gather_rows(group, x, GradScale::sum);
    EXPECT_EQ(plain.rows, layout);
    const auto known = autograd::all_gather_rows(group, x, GradScale::sum, layout);
    EXPECT_EQ(known.rows, layout);
    const Numbers want = numbers(group, plain.value);
    EXPECT_EQ(numbers(group, known.value), want);
    const Buffer whole = put(group, want, plain.value.shape());
    const auto scattered = autograd::reduce_scatter_rows(group, whole, layout);
    EXPECT_EQ(numbers(group, scattered.back(group, x).value), want);
    EXPECT_EQ(numbers(group, known.back(group, whole).value),
              numbers(group, plain.back(group, whole).value));
  });
}

TEST_P(AutogradRows, AZeroDimensionalArrayIsOneRowAndItsGradientHasNoDimension) {
  on_group_and_parts(GetParam(), [](ProcessGroup& group) {
    expect_adjoint(group, Shape{}, [](ProcessGroup& g, const ConstTensorView& x) {
      return autograd::all_gather_rows(g, x, GradScale::sum);
    });
  });
}

TEST_P(AutogradRows, TheLayoutOfEqualRowsIsToldOnEveryRank) {
  on_group_and_parts(GetParam(), [](ProcessGroup& group) {
    const Buffer x = put(group, random_numbers(4, group.rank(), 6), {2, 2});
    for (const auto grad : {GradScale::sum, GradScale::mean, GradScale::local_slice})
      EXPECT_EQ(autograd::all_gather_rows(group, x, grad).rows, RowLayout::equal(group.size(), 2));
    EXPECT_EQ(autograd::gather_rows(group, x, 0).rows, RowLayout::equal(group.size(), 2));
  });
}

// There is no default scale, because libraries disagree.
template <typename... Args>
constexpr bool gathers = requires(Args&&... args) {
  autograd::all_gather_rows(std::forward<Args>(args)...);
};
static_assert(gathers<ProcessGroup&, ConstTensorView, GradScale>);
static_assert(!gathers<ProcessGroup&, ConstTensorView>);

class AutogradScaled : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, AutogradScaled, testing::ValuesIn(worlds()), CaseName());

TEST_P(AutogradScaled, TheAdjointOfAReduceScatterGathersAndScales) {
  on_group_and_parts(GetParam(), [](ProcessGroup& group) {
    for (const ReduceOp op : linear_ops(group)) {
      for (const Layout& layout : uneven_layouts(group.size())) {
        SCOPED_TRACE(std::string(name_of(op.kind)) + ", rows " + to_string(layout));
        const RowLayout rows(layout);
        const auto forward = [&](ProcessGroup& g, const ConstTensorView& x) {
          return autograd::reduce_scatter_rows(g, x, rows, op);
        };
        expect_adjoint(group, {rows.total(), 2}, forward);
      }
    }
  });
}

/// Row counts from each rank to each rank, some of them zero.
std::int64_t rows_between(int from, int to) {
  return (2 * from + 3 * to) % 4;
}

TEST_P(AutogradScaled, TheAdjointOfAnAllToAllSendsTheRowsBack) {
  on_group_and_parts(GetParam(), [](ProcessGroup& group) {
    std::vector<std::int64_t> send_rows;
    std::vector<std::int64_t> recv_rows;
    for (int r = 0; r < group.size(); ++r) {
      send_rows.push_back(rows_between(group.rank(), r));
      recv_rows.push_back(rows_between(r, group.rank()));
    }
    expect_adjoint(group, {total(send_rows), 2}, [&](ProcessGroup& g, const ConstTensorView& x) {
      return autograd::all_to_all_rows(g, x, send_rows, recv_rows);
    });
    expect_adjoint(group, {total(send_rows), 2}, [&](ProcessGroup& g, const ConstTensorView& x) {
      auto done = autograd::all_to_all_rows(g, x, send_rows);
      EXPECT_EQ(done.rows, RowLayout(recv_rows));
      return done;
    });
    const std::vector<std::int64_t> two(index(group.size()), 2);
    for (const Rows& rows : {Rows(), Rows(2), Rows(two)})
      for (const Rows& expected : {Rows(), Rows(2), Rows(two)})
        expect_adjoint(group, {2 * group.size(), 3},
                       [&](ProcessGroup& g, const ConstTensorView& x) {
                         return autograd::all_to_all_rows(g, x, rows, expected);
                       });
  });
}

}  // namespace
}  // namespace tutti::test
