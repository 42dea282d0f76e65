#include <tutti/ddp/join.hpp>

#include <algorithm>
#include <functional>

#include <tutti/losses/cross_entropy.hpp>

#include "conformance/cells.hpp"
#include "conformance/observed.hpp"

namespace tutti::test {
namespace {

using ddp::GradientReducer;
using ddp::Join;
using ddp::JoinOptions;
using ddp::ReducerOptions;

class Joins : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, Joins, testing::ValuesIn(worlds()), CaseName());

class JoinsOfSeveral : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, JoinsOfSeveral, testing::ValuesIn(worlds_of_several()),
                         CaseName());

constexpr std::size_t count = 8;

/// Returns the number of batches of a rank: 3, 0, 5 or 1.
int batches_of(int rank) {
  constexpr int batches[] = {3, 0, 5, 1};
  return batches[rank % 4];
}
int most_batches(int size) {
  int most = 0;
  for (int rank = 0; rank < size; ++rank) most = std::max(most, batches_of(rank));
  return most;
}
int ranks_with(int size, int batch) {
  int with = 0;
  for (int rank = 0; rank < size; ++rank) with += batches_of(rank) > batch;
  return with;
}
double gradient_of(int rank, int batch) {
  return 1 + rank + 10.0 * batch;
}
double sum_of_gradients(int size, int batch) {
  double sum = 0;
  for (int rank = 0; rank < size; ++rank)
    if (batches_of(rank) > batch) sum += gradient_of(rank, batch);
  return sum;
}

Array filled(double value) {
  return array_of<double>(std::vector<double>(count, value));
}
ddp::Parameter parameter_a(ProcessGroup& group) {
  return {"a", {nullptr, DType::f64, {count}, group.memory().device()}};
}

/// Runs one pass over the batches, and subtracts the gradients from a parameter.
double pass(ProcessGroup& group, const ReducerOptions& reducer_options,
            const JoinOptions& options) {
  std::vector<double> parameter(count, 100);
  GradientReducer reducer(
      group, {parameter_a(group), {"b", {nullptr, DType::f32, {5}, group.memory().device()}}},
      reducer_options);
  Join join(reducer, options);
  int batch = 0;
  int made = 0;
  while (join.next(batch < batches_of(group.rank()))) {
    EXPECT_EQ(join.ranks_with_batch(), ranks_with(group.size(), made));
    ++made;
    if (batch < batches_of(group.rank())) {
      const Buffer a(group, filled(gradient_of(group.rank(), batch)));
      const Buffer b(group, array_of<float>({1, 1, 1, 1, 1}));
      reducer.mark_ready(1, b);
      reducer.mark_ready(0, a);
      reducer.finish();
      ++batch;
    }
    const auto reduced = values_of<double>(content_of(group, reducer.gradient(0)));
    for (std::size_t i = 0; i < count; ++i) parameter[i] -= reduced[i];
  }
  EXPECT_EQ(made, most_batches(group.size())) << "next() gave false too early or too late";
  EXPECT_EQ(batch, batches_of(group.rank()));
  for (const double v : parameter) EXPECT_EQ(v, parameter[0]);
  return parameter[0];
}

void expect_pass(const World& world, const ReducerOptions& reducer_options,
                 const JoinOptions& options, const std::function<double(int batch)>& divisor) {
  double want = 100;
  for (int batch = 0; batch < most_batches(world.size); ++batch)
    want -= sum_of_gradients(world.size, batch) / divisor(batch);
  PerRank<double> got(world.size);
  on_ranks(world, [&](ProcessGroup& group) {
    got[group.rank()] = pass(group, reducer_options, options);
    EXPECT_NEAR(got[group.rank()], want, 1e-9) << "the parameter differs";
  });
  for (const double v : got.all()) EXPECT_EQ(v, got[0]) << "ranks have other parameters";
}

TEST_P(Joins, GradientsAreDividedByTheInitialNumberOfRanks) {
  expect_pass(GetParam(), {}, {}, [&](int) { return GetParam().size; });
  expect_pass(GetParam(), {.find_unused_parameters = true}, {},
              [&](int) { return GetParam().size; });
}

TEST_P(Joins, GradientsAreDividedByTheRanksWithABatch) {
  expect_pass(GetParam(), {}, {.divide_by_initial_world_size = false},
              [&](int batch) { return ranks_with(GetParam().size, batch); });
}

TEST_P(Joins, TheReducersOwnDivisorStays) {
  expect_pass(GetParam(), {.divisor = 1}, {}, [](int) { return 1; });
}

TEST_P(Joins, AfterTheEndTheDivisorIsThatOfAllRanks) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    const Buffer gradient(group, filled(group.rank()));
    GradientReducer reducer(group, {parameter_a(group)});
    Join join(reducer, {.divide_by_initial_world_size = false});
    bool has = group.rank() == 0;
    while (join.next(has)) {
      if (has) {
        reducer.mark_ready(0, gradient);
        reducer.finish();
      }
      has = false;
    }
    gradient.write(filled(group.rank()));
    reducer.mark_ready(0, gradient);
    reducer.finish();
    for (const double v : values_of<double>(gradient.read()))
      EXPECT_DOUBLE_EQ(v, (group.size() - 1) / 2.0);
  });
}

TEST_P(JoinsOfSeveral, EarlyTerminationMayBeAnErrorOnEveryRank) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    GradientReducer reducer(group, {parameter_a(group)});
    Join join(reducer, {.throw_on_early_termination = true});
    const Buffer gradient(group, filled(1));
    ASSERT_TRUE(join.next(true));
    reducer.mark_ready(0, gradient);
    reducer.finish();
    expect_error(Errc::mismatch, {"Join: ranks 0 have no batch left, ranks 1", "have one"},
                 [&] { (void)join.next(group.rank() != 0); });
    EXPECT_FALSE(join.next(false));
    expect_usable(group);
  });
}

TEST_P(JoinsOfSeveral, AMistakeOfARankWithABatchIsSeenByOnesWithout) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    GradientReducer reducer(group, {parameter_a(group)});
    Join join(reducer);
    expect_error({Errc::mismatch, Errc::invalid_argument}, {"'a' has no gradient"}, [&] {
      (void)join.next(group.rank() == 0);
      reducer.finish();
    });
    EXPECT_FALSE(join.next(false));
  });
}

TEST_P(Joins, AReducerWithoutParametersIsRefused) {
  on_ranks(GetParam(), [](ProcessGroup& group) {
    expect_error(Errc::invalid_argument, {"has no parameters"}, [&] {
      GradientReducer reducer(group, {});
      const Join join(reducer);
    });
  });
}

constexpr std::int64_t classes = 3;

/// Returns the number of rows of a rank in a step: uneven, and 0 once its batches are used up.
std::int64_t rows_of(int rank, int step) {
  return step < batches_of(rank) ? 1 + (rank + 2 * step) % 4 : 0;
}

/// Logits and targets of rows [first, first + rows) of the step's global batch. The logits of a row
/// are the weights times the row's x.
struct Batch {
  Batch(std::int64_t first, std::int64_t rows, int step, const std::vector<double>& weights) {
    for (std::int64_t r = first; r < first + rows; ++r) {
      x.push_back(0.3 * static_cast<double>(r + 1) - 0.2 * step);
      for (const double w : weights) logits.push_back(w * x.back());
      targets.push_back((r + step) % classes);
    }
  }
  /// Returns the gradient of the weights, from that of the logits.
  std::vector<double> gradient(const Tensor& grad) const {
    std::vector<double> sum(classes, 0);
    const auto* g = static_cast<const double*>(grad.data());
    for (const double v : x)
      for (double& s : sum) s += *g++ * v;
    return sum;
  }
  losses::Batch batch() const {
    return {.logits = view(logits, {std::ssize(targets), classes}), .targets = targets};
  }
  std::vector<double> x;
  std::vector<double> logits;
  std::vector<std::int64_t> targets;
};

TEST_P(Joins, ALossOverZeroRowsStaysExact) {
  const int size = GetParam().size;
  const losses::CrossEntropy loss({.classes = classes});
  // A single process has the rows of all ranks.
  std::vector<double> want{0.3, -0.2, 0.5};
  std::vector<double> want_losses;
  for (int step = 0; step < most_batches(size); ++step) {
    std::int64_t rows = 0;
    for (int rank = 0; rank < size; ++rank) rows += rows_of(rank, step);
    const Batch all(0, rows, step, want);
    const auto result = loss(all.batch());
    const auto gradient = all.gradient(result.grad);
    for (std::size_t i = 0; i < want.size(); ++i) want[i] -= 0.1 * gradient[i];
    want_losses.push_back(result.loss);
  }
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    std::vector<double> weights{0.3, -0.2, 0.5};
    GradientReducer reducer(
        group, {{"weights", {nullptr, DType::f64, {classes}, group.memory().device()}}});
    Join join(reducer, {.make_empty_steps = false});
    int step = 0;
    for (; join.next(step < batches_of(group.rank())); ++step) {
      std::int64_t first = 0;
      for (int rank = 0; rank < group.rank(); ++rank) first += rows_of(rank, step);
      const Batch mine(first, rows_of(group.rank(), step), step, weights);
      const auto result = loss(group, mine.batch());
      ASSERT_LT(index(step), want_losses.size());
      EXPECT_NEAR(result.loss, want_losses[index(step)], 1e-12);
      if (step < batches_of(group.rank())) {
        const Buffer gradient(group, array_of<double>(mine.gradient(result.grad)));
        reducer.mark_ready(0, gradient);
        reducer.finish();
      } else {
        reducer.step_empty();
      }
      const auto reduced = values_of<double>(content_of(group, reducer.gradient(0)));
      for (std::size_t i = 0; i < weights.size(); ++i) weights[i] -= 0.1 * reduced[i];
    }
    for (std::size_t i = 0; i < weights.size(); ++i)
      EXPECT_NEAR(weights[i], want[i], 1e-12) << "the weights differ from one process";
  });
}

}  // namespace
}  // namespace tutti::test
