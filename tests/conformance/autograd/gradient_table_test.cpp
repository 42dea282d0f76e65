#include <cmath>
#include <optional>

#include <tutti/autograd.hpp>

#include "conformance/autograd/gradient_check.hpp"
#include "conformance/autograd/gradient_model.hpp"

// The table of docs/gradients.md: the combinations of loss, gradient of the gather and reducer that
// give the gradient of one process on the whole batch, and the factors by which the others differ.

namespace tutti::test {
namespace {

constexpr std::int64_t batch = 12;

/// The loss that each rank back-propagates.
enum class Loss {
  replicated,       ///< The global mean, on every rank.
  own_of_global,    ///< The part of its own rows: divided by the number of all rows.
  own_of_weighted,  ///< W times that part: the mean of its own rows, weighted by n_r W / N.
  own_of_own        ///< The mean of its own rows.
};

/// Row weights of this rank's loss.
Numbers weights_of(Loss loss, const RowLayout& layout, int rank) {
  const auto global = static_cast<double>(layout.total());
  Numbers weights(static_cast<std::size_t>(layout.total()), 1 / global);
  if (loss == Loss::replicated) return weights;
  for (std::int64_t i = 0; i < layout.total(); ++i) {
    auto& weight = weights[static_cast<std::size_t>(i)];
    if (i < layout.offset(rank) || i >= layout.offset(rank + 1))
      weight = 0;
    else if (loss == Loss::own_of_weighted)
      weight *= layout.ranks();
    else if (loss == Loss::own_of_own)
      weight = 1 / static_cast<double>(layout[rank]);
  }
  return weights;
}

Matrix whole_batch() {
  Matrix x(batch, 3);
  x.data = random_numbers(batch * 3, 0, 41);
  return x;
}

Numbers gradient_of_one_process() {
  const Model model;
  const Matrix x = whole_batch();
  return model.backward(x, pair_loss_gradient(model.forward(x), Numbers(batch, 1.0 / batch)));
}

/// The gradient by the parameters that the reducer leaves on every rank.
Numbers gradient_of_ranks(ProcessGroup& group, const RowLayout& layout, Loss loss, GradScale grad,
                          ReduceOp reducer) {
  const Model model;
  const int rank = group.rank();
  const Matrix x = rows_of(whole_batch(), layout.offset(rank), layout[rank]);
  const Matrix own = model.forward(x);
  const Buffer local = put(group, own.data, {own.rows, own.columns});
  const auto gathered = autograd::all_gather_rows(group, local, grad);
  EXPECT_EQ(gathered.rows, layout);
  Matrix z(layout.total(), own.columns);
  z.data = numbers(group, gathered.value);
  const Matrix by_z = pair_loss_gradient(z, weights_of(loss, layout, rank));
  const Buffer by_out = put(group, by_z.data, {z.rows, z.columns});
  const Tensor by_own = gathered.back(group, by_out).value;
  Matrix by_rows(own.rows, own.columns);
  by_rows.data = numbers(group, by_own);
  const Buffer gradient = put(group, model.backward(x, by_rows));
  group.all_reduce(gradient, reducer);
  return numbers(group, gradient.view());
}

double largest(const Numbers& values) {
  double most = 0;
  for (const double value : values) most = std::max(most, std::abs(value));
  return most;
}

Numbers minus(const Numbers& a, double factor, const Numbers& b) {
  Numbers out = a;
  for (std::size_t i = 0; i < out.size(); ++i) out[i] -= factor * b[i];
  return out;
}

/// The sine of the angle between them: the distance of `got` from the multiples of `want`.
double off_direction(const Numbers& got, const Numbers& want) {
  const double best = dot(got, want) / dot(want, want);
  const Numbers rest = minus(got, best, want);
  return std::sqrt(dot(rest, rest) / dot(got, got));
}

/// The batch, split into different numbers of rows.
RowLayout uneven(int size) {
  switch (size) {
    case 1:
      return RowLayout(Layout{batch});
    case 2:
      return RowLayout(Layout{9, 3});
    case 3:
      return RowLayout(Layout{7, 0, 5});
    default:
      return RowLayout(Layout{5, 1, 0, 6});
  }
}

/// A line of the table: the factor of the reduced gradient; empty if it is no multiple of the true
/// one.
struct Line {
  const char* name;
  Loss loss;
  GradScale grad;
  std::optional<double> with_mean;
  std::optional<double> with_sum;
};

std::vector<Line> table(int size) {
  const double w = size;
  using enum Loss;
  using enum GradScale;
  return {
      {"replicated loss, sum", replicated, sum, 1, w},
      {"replicated loss, local slice", replicated, local_slice, 1 / w, 1},
      {"replicated loss, mean", replicated, mean, 1 / w, 1},
      {"own rows / N, sum", own_of_global, sum, 1 / w, 1},
      {"own rows / N, local slice", own_of_global, local_slice, {}, {}},
      {"own rows / N, mean", own_of_global, mean, 1 / (w * w), 1 / w},
      {"own rows * W / N, sum", own_of_weighted, sum, 1, w},
      {"own rows / n_r, sum", own_of_own, sum, {}, {}},
      {"own rows / n_r, local slice", own_of_own, local_slice, {}, {}},
      {"own rows / n_r, mean", own_of_own, mean, {}, {}},
  };
}

class GradientTable : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, GradientTable, testing::ValuesIn(worlds()), CaseName());

TEST_P(GradientTable, EveryCombinationHasItsFactorOrIsBiased) {
  const Numbers want = gradient_of_one_process();
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const auto layout = uneven(group.size());
    for (const Line& line : table(group.size())) {
      for (const bool by_mean : {true, false}) {
        SCOPED_TRACE(std::string(line.name) + (by_mean ? ", mean reducer" : ", sum reducer"));
        const Numbers got = gradient_of_ranks(group, layout, line.loss, line.grad,
                                              by_mean ? ReduceOp::avg : ReduceOp::sum);
        const auto factor = by_mean ? line.with_mean : line.with_sum;
        if (factor || group.size() == 1) {
          // Tolerance for sums in another order: about 1e-16 for each of the dozens of terms.
          EXPECT_LE(largest(minus(got, factor.value_or(1), want)), 1e-12 * largest(want));
        } else {
          EXPECT_GE(off_direction(got, want), 0.01);
        }
      }
    }
  });
}

TEST_P(GradientTable, AMeanOfMeansIsRightWhenAllRanksHaveAsManyRows) {
  const Numbers want = gradient_of_one_process();
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const auto layout = RowLayout::equal(group.size(), batch / group.size());
    const Numbers got =
        gradient_of_ranks(group, layout, Loss::own_of_own, GradScale::sum, ReduceOp::avg);
    EXPECT_LE(largest(minus(got, 1, want)), 1e-12 * largest(want));
  });
}

TEST_P(GradientTable, AStepOnManyRanksIsTheStepOfOneProcess) {
  const Numbers want = gradient_of_one_process();
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const auto stepped = [](const Numbers& gradient) {
      Model model;
      const auto parameters = model.parameters();
      for (std::size_t i = 0; i < parameters.size(); ++i) *parameters[i] -= 0.1 * gradient[i];
      const Matrix x = whole_batch();
      return pair_loss(model.forward(x), Numbers(batch, 1.0 / batch));
    };
    const auto layout = uneven(group.size());
    const double one = stepped(want);
    const Model before;
    EXPECT_LT(one, pair_loss(before.forward(whole_batch()), Numbers(batch, 1.0 / batch)));
    for (const auto& [loss, grad, reducer] :
         {std::tuple(Loss::replicated, GradScale::sum, ReduceOp::avg),
          std::tuple(Loss::own_of_weighted, GradScale::sum, ReduceOp::avg),
          std::tuple(Loss::replicated, GradScale::local_slice, ReduceOp::sum)})
      EXPECT_NEAR(stepped(gradient_of_ranks(group, layout, loss, grad, reducer)), one, 1e-12);
  });
}

// Checks the model itself.
TEST_P(GradientTable, IsMeasuredWithTheDerivativesOfTheLoss) {
  const Numbers weights = random_numbers(batch, 0, 42);
  const Matrix x = whole_batch();
  Model model;
  const Numbers gradient = model.backward(x, pair_loss_gradient(model.forward(x), weights));
  const auto parameters = model.parameters();
  ASSERT_EQ(gradient.size(), parameters.size());
  constexpr double step = 1e-5;  // The error is about step^2 = 1e-10, plus 1e-16 / step.
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto loss_at = [&](double by) {
      *parameters[i] += by;
      const double loss = pair_loss(model.forward(x), weights);
      *parameters[i] -= by;
      return loss;
    };
    EXPECT_NEAR(gradient[i], (loss_at(step) - loss_at(-step)) / (2 * step), 1e-7);
  }
}

}  // namespace
}  // namespace tutti::test
