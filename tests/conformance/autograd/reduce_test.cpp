#include <tutti/autograd.hpp>

#include <cmath>
#include <limits>

#include "conformance/autograd/gradient_check.hpp"
#include "conformance/observed.hpp"

namespace tutti::test {
namespace {

class AutogradReduce : public testing::TestWithParam<World> {
 protected:
  void on_groups(const std::function<void(ProcessGroup& group)>& body) {
    on_group_and_parts(GetParam(), body);
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, AutogradReduce, testing::ValuesIn(worlds()), CaseName());

autograd::Differentiable reduced(ProcessGroup& group, const ConstTensorView& x, ReduceOp op) {
  return autograd::all_reduce(group, x, op);
}

/// True if its gradient is computed element by element, which is refused if the host cannot access
/// the elements.
bool is_refused(ProcessGroup& group, ReduceOp op) {
  const bool moves = op.kind == ReduceOp::Kind::sum || op.kind == ReduceOp::Kind::avg;
  if (moves || group.memory().device().type == DeviceType::cpu) return false;
  const Buffer x = put(group, Numbers(2));
  expect_error(Errc::unsupported, {"all_reduce", "host memory"}, [&] { reduced(group, x, op); });
  return true;
}

TEST_P(AutogradReduce, EachOperationHasItsOwnAdjoint) {
  on_groups([](ProcessGroup& group) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::premul(0.5 + group.rank()),
                              ReduceOp::min, ReduceOp::max, ReduceOp::prod}) {
      SCOPED_TRACE(name_of(op.kind));
      if (is_refused(group, op)) continue;
      const auto forward = [&](ProcessGroup& g, const ConstTensorView& x) {
        return reduced(g, x, op);
      };
      expect_adjoint(group, equal_shape, forward);
      if (op == ReduceOp::max) expect_adjoint(group, Shape{}, forward);
      if (op == ReduceOp::prod) expect_adjoint(group, Shape{0, 4}, forward);
    }
  });
}

TEST_P(AutogradReduce, TheForwardIsTheReduction) {
  on_groups([](ProcessGroup& group) {
    const Numbers mine = random_numbers(5, group.rank(), 21);
    const Buffer x = put(group, mine);
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::premul(1.5), ReduceOp::min,
                              ReduceOp::max, ReduceOp::prod}) {
      SCOPED_TRACE(name_of(op.kind));
      if (is_refused(group, op)) continue;
      const CallOptions options{.order_fixed = can_fix_order(group.backend())};
      const Buffer want = put(group, mine);
      group.all_reduce(want, op, options);
      const auto at = autograd::all_reduce(group, x, op, options);
      EXPECT_EQ(numbers(group, at.value), numbers(group, want));
    }
  });
}

// Weights are products, without a division: with one zero factor its own gradient is the product of
// the others; with two, all gradients are zero.
TEST_P(AutogradReduce, TheGradientOfAProductIsRightWhereFactorsAreZero) {
  on_groups([](ProcessGroup& group) {
    // Zeros on: no rank; rank 0; ranks 0 and 1; all ranks.
    Numbers x(4, group.rank() + 2.0);
    for (std::size_t i = 1; i < x.size(); ++i)
      if (group.rank() < static_cast<int>(i) || i == 3) x[i] = 0;
    expect_adjoint_at(group, x, {4}, [](ProcessGroup& g, const ConstTensorView& at) {
      return reduced(g, at, ReduceOp::prod);
    });
  });
}

// Changing all tied elements by the same amount changes the result by it: the shares are equal and
// add up to one.
TEST_P(AutogradReduce, RanksThatTieShareTheGradientEqually) {
  on_groups([](ProcessGroup& group) {
    const int size = group.size();
    const int rank = group.rank();
    const double nan = std::numeric_limits<double>::quiet_NaN();
    for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
      const double sign = op == ReduceOp::max ? 1 : -1;
      // Ties of: all ranks; the even ranks; the last rank alone; zeros of both signs; NaN on rank
      // 0; NaN on all.
      const Numbers x{sign * 5,
                      rank % 2 == 0 ? sign * 3 : 0,
                      sign * rank,
                      rank % 2 == 0 ? 0.0 : -0.0,
                      rank == 0 ? nan : sign * 100,
                      nan};
      const double all = 1.0 / size;
      const double even = 1.0 / ((size + 1) / 2);
      const Numbers want{all, rank % 2 == 0 ? even : 0, rank == size - 1 ? 1.0 : 0,
                         all, rank == 0 ? 1.0 : 0,      all};
      const Buffer in = put(group, x);
      const auto at = autograd::all_reduce(group, in, op);
      const Numbers c{1, 2, 3, 4, 5, 6};
      const Buffer by_out = put(group, c);
      const Numbers gradient = numbers(group, at.back(group, by_out).value);
      ASSERT_EQ(gradient.size(), want.size());
      for (std::size_t i = 0; i < want.size(); ++i)
        EXPECT_DOUBLE_EQ(gradient[i], want[i] * size * c[i])
            << name_of(op.kind) << ", element " << i << " of rank " << rank;
    }
  });
}

TEST_P(AutogradReduce, ExtremesWithoutTiesHaveTheGradientOfTheirHolder) {
  on_groups([](ProcessGroup& group) {
    const int mine = (group.rank() + 1) % group.size();
    const Buffer x = put(group, {static_cast<double>(mine)});
    const auto at = autograd::all_reduce(group, x, ReduceOp::max);
    const Buffer c = put(group, {group.rank() + 1.0});
    const bool holds = mine == group.size() - 1;
    EXPECT_EQ(numbers(group, at.back(group, c).value),
              Numbers{holds ? group.size() * (group.size() + 1) / 2.0 : 0.0});
  });
}

// Small integers are exact in every dtype: the gradients equal those of f64.
TEST_P(AutogradReduce, EveryFloatHasTheGradientsOfDouble) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    const auto at_dtype = [&]<typename T>(ReduceOp op, T) {
      Array values(dtype_of<T>, {9});
      Array by_out(dtype_of<T>, {9});
      for (int i = 0; i < 9; ++i) {
        values.put<T>(i, T(static_cast<float>((group.rank() * 5 + i) % 3 - 1)));
        by_out.put<T>(i, T(static_cast<float>((group.rank() + 2 * i) % 4)));
      }
      const Buffer x(group, values);
      const Buffer c(group, by_out);
      const auto at = autograd::all_reduce(group, x, op);
      const Tensor gradient = at.back(group, c).value;
      EXPECT_EQ(gradient.dtype(), dtype_of<T>);
      const Array got = content_of(group, gradient);
      Numbers all;
      for (int i = 0; i < 9; ++i) {
        if constexpr (std::is_same_v<T, double>)
          all.push_back(got.get<T>(i));
        else
          all.push_back(static_cast<float>(got.get<T>(i)));
      }
      return all;
    };
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::premul(2), ReduceOp::min,
                              ReduceOp::max, ReduceOp::prod}) {
      if (is_refused(group, op)) continue;
      const Numbers want = at_dtype(op, double{});
      const auto expect_near = [&](const Numbers& got, double eps) {
        for (std::size_t i = 0; i < want.size(); ++i)  // 1/3 and its multiples are rounded twice.
          EXPECT_NEAR(got[i], want[i], 2 * eps * std::abs(want[i])) << name_of(op.kind);
      };
      expect_near(at_dtype(op, float{}), 0x1p-24);
      expect_near(at_dtype(op, Float16{}), 0x1p-11);
      expect_near(at_dtype(op, BFloat16{}), 0x1p-8);
    }
  });
}

}  // namespace
}  // namespace tutti::test
