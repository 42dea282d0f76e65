#include <tutti/ddp/power_sgd.hpp>

#include <cmath>
#include <limits>
#include <map>

#include <tutti/ddp/gradient_reducer.hpp>
#include <tutti/ddp/hooks.hpp>

#include "conformance/ddp/hook_steps.hpp"

namespace tutti::test {
namespace {

using ddp::PowerSgdOptions;
using ddp::PowerSgdState;

/// A matrix and a vector in the first bucket; a tensor, a scalar and a tall matrix in the second.
const std::vector<Shape> power_shapes{{12, 10}, {9}, {6, 4, 5}, Shape(), {40, 3}};
const std::vector<Ids> power_layout{{0, 1}, {2, 3, 4}};

class PowerSgd : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Worlds, PowerSgd, testing::ValuesIn(worlds()), CaseName());

ddp::CommHook hook_of(const std::shared_ptr<PowerSgdState>& state, bool batched) {
  return batched ? ddp::batched_power_sgd_hook(state) : ddp::power_sgd_hook(state);
}

/// Returns an element of the Q before the first step, from the id of its matrix.
double initial_value(std::size_t id, std::int64_t row, int column) {
  return gradient_value(id, 7, column, row);
}

void give_q(std::size_t id, const TensorView& q) {
  const std::int64_t rank = q.shape.dims()[1];
  for (std::int64_t i = 0; i < q.shape.numel(); ++i) {
    const double value = initial_value(id, i / rank, static_cast<int>(i % rank));
    if (q.dtype == DType::f64)
      static_cast<double*>(q.data)[i] = value;
    else
      static_cast<float*>(q.data)[i] = static_cast<float>(value);
  }
}

/// Computes algorithms 1 and 2 of the paper for one matrix of all ranks, in the simplest way.
class Reference {
 public:
  Reference(std::size_t id, std::int64_t rows, std::int64_t columns, int rank, int ranks)
      : n_(rows), m_(columns), r_(std::min<std::int64_t>({rows, columns, rank})) {
    errors_.assign(index(ranks), std::vector<double>(static_cast<std::size_t>(n_ * m_)));
    q_.resize(static_cast<std::size_t>(m_ * r_));
    for (std::int64_t j = 0; j < m_; ++j)
      for (std::int64_t k = 0; k < r_; ++k)
        at(q_, j, k) = initial_value(id, j, static_cast<int>(k));
  }

  std::vector<double> step(const std::vector<std::vector<double>>& gradients, double divisor) {
    for (std::size_t r = 0; r < errors_.size(); ++r)
      for (std::size_t i = 0; i < errors_[r].size(); ++i) errors_[r][i] += gradients[r][i];
    orthonormalize(q_, m_);
    std::vector<double> p(static_cast<std::size_t>(n_ * r_));
    for (const auto& matrix : errors_)
      for (std::int64_t i = 0; i < n_; ++i)
        for (std::int64_t j = 0; j < m_; ++j)
          for (std::int64_t k = 0; k < r_; ++k)
            at(p, i, k) += matrix[static_cast<std::size_t>(i * m_ + j)] * at(q_, j, k);
    orthonormalize(p, n_);
    std::ranges::fill(q_, 0);
    for (const auto& matrix : errors_)
      for (std::int64_t i = 0; i < n_; ++i)
        for (std::int64_t j = 0; j < m_; ++j)
          for (std::int64_t k = 0; k < r_; ++k)
            at(q_, j, k) += matrix[static_cast<std::size_t>(i * m_ + j)] * at(p, i, k) / divisor;
    std::vector<double> result;
    for (std::int64_t i = 0; i < n_; ++i)
      for (std::int64_t j = 0; j < m_; ++j) {
        double sum = 0;
        for (std::int64_t k = 0; k < r_; ++k) sum += at(p, i, k) * at(q_, j, k);
        for (auto& matrix : errors_) matrix[result.size()] -= sum;
        result.push_back(sum);
      }
    return result;
  }

 private:
  double& at(std::vector<double>& thin, std::int64_t i, std::int64_t k) const {
    return thin[static_cast<std::size_t>(i * r_ + k)];
  }
  void orthonormalize(std::vector<double>& thin, std::int64_t length) const {
    for (std::int64_t k = 0; k < r_; ++k) {
      for (std::int64_t j = 0; j < k; ++j) {
        double part = 0;
        for (std::int64_t i = 0; i < length; ++i) part += at(thin, i, j) * at(thin, i, k);
        for (std::int64_t i = 0; i < length; ++i) at(thin, i, k) -= part * at(thin, i, j);
      }
      double square = 0;
      for (std::int64_t i = 0; i < length; ++i) square += at(thin, i, k) * at(thin, i, k);
      for (std::int64_t i = 0; i < length; ++i) at(thin, i, k) /= std::sqrt(square);
    }
  }

  std::int64_t n_, m_, r_;
  std::vector<std::vector<double>> errors_;
  std::vector<double> q_;
};

TEST_P(PowerSgd, IsThePapersAlgorithmOverSteps) {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const int rank : {1, 3})
      on_ranks(world(), [&](ProcessGroup& group) {
        const PowerSgdOptions options{
            .rank = rank, .start_step = 1, .min_compression_rate = 1.5, .initial_q = give_q};
        const auto state = std::make_shared<PowerSgdState>(options);
        HookSteps steps(group, dtype, power_shapes, power_layout);
        std::map<std::size_t, Reference> references;
        for (const std::size_t id : {0u, 2u, 4u}) {
          const std::int64_t n = power_shapes[id].rows();
          const std::int64_t m = power_shapes[id].row_numel();
          if (static_cast<double>((n + m) * std::min<std::int64_t>(rank, m)) * 1.5 <
              static_cast<double>(n * m))
            references.try_emplace(id, id, n, m, rank, group.size());
        }
        ASSERT_EQ(references.size(), rank == 1 ? 3u : 2u);
        for (int step = 0; step < 5; ++step) {
          SCOPED_TRACE("step " + std::to_string(step));
          const Results got = steps.run(hook_of(state, false));
          Results want = steps.mean(step, group.size());
          if (step > 0)
            for (auto& [id, reference] : references) {
              std::vector<std::vector<double>> gradients(index(group.size()));
              for (int r = 0; r < group.size(); ++r)
                for (std::int64_t i = 0; i < power_shapes[id].numel(); ++i)
                  gradients[index(r)].push_back(gradient_value(id, r, step, i));
              want[id] = reference.step(gradients, group.size());
            }
          expect_near(got, want, dtype == DType::f64 ? 1e-9 : 1e-4);
          expect_same_on_all_ranks(group, got);
        }
        EXPECT_EQ(state->step(), 5);
      });
}

TEST_P(PowerSgd, OfFullRankIsTheReduction) {
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16})
    for (const bool batched : {false, true})
      for (const double divisor : {0.0, 1.0, 5.0})
        on_ranks(world(), [&](ProcessGroup& group) {
          const auto state = std::make_shared<PowerSgdState>(
              PowerSgdOptions{.rank = 64, .start_step = 0, .min_compression_rate = 0.001});
          HookSteps steps(group, dtype, power_shapes, power_layout);
          steps.set_divisor(divisor);
          const double tolerance = dtype == DType::f64   ? 1e-11
                                   : dtype == DType::f32 ? 1e-5
                                   : dtype == DType::f16 ? 1e-2
                                                         : 8e-2;
          for (int step = 0; step < 3; ++step)
            expect_near(steps.run(hook_of(state, batched)),
                        steps.mean(step, divisor == 0 ? group.size() : divisor), tolerance);
        });
}

// A gradient that was not sent is sent later. In steps with gradients of 0, each step sends `rank`
// more directions of the error.
TEST_P(PowerSgd, ErrorsAndResultsTogetherAreTheGradients) {
  for (const bool batched : {false, true})
    on_ranks(world(), [&](ProcessGroup& group) {
      const auto state = std::make_shared<PowerSgdState>(
          PowerSgdOptions{.rank = 2, .start_step = 0, .warm_start = false});
      HookSteps steps(group, DType::f64, power_shapes, power_layout);
      Results sent, want;
      constexpr int with_gradients = 3;
      const auto gradient = [&](std::size_t id, int rank, std::int64_t step, std::int64_t i) {
        return step < with_gradients ? gradient_value(id, rank, step, i) : 0.0;
      };
      for (int step = 0; step < with_gradients; ++step) {
        add(sent, steps.run(hook_of(state, batched), gradient), 1);
        add(want, steps.mean(step, group.size()), 1);
      }
      double lost = 0;
      for (std::size_t i = 0; i < want[0].size(); ++i)
        lost = std::max(lost, std::abs(sent[0][i] - want[0][i]));
      EXPECT_GT(lost, 0.05) << "nothing was lost that could come back";
      // 260 elements need a matrix of 17 x 17, which has 17 directions.
      for (int step = 0; step < 10; ++step)
        add(sent, steps.run(hook_of(state, batched), gradient), 1);
      expect_near(sent, want, 1e-9);
    });
}

TEST_P(PowerSgd, WithoutErrorFeedbackWhatIsLostStaysLost) {
  on_ranks(world(), [&](ProcessGroup& group) {
    const auto state =
        std::make_shared<PowerSgdState>(PowerSgdOptions{.start_step = 0, .error_feedback = false});
    HookSteps steps(group, DType::f64, power_shapes, power_layout);
    (void)steps.run(hook_of(state, false));
    const auto zeros = [](std::size_t, int, std::int64_t, std::int64_t) { return 0.0; };
    for (const auto& result : steps.run(hook_of(state, false), zeros))
      for (const double x : result) EXPECT_EQ(x, 0);
    expect_same_on_all_ranks(group, steps.run(hook_of(state, false)));
  });
}

TEST_P(PowerSgd, ContinuesFromASavedStateBitForBit) {
  for (const bool batched : {false, true})
    for (const DType dtype : {DType::f32, DType::f64})
      on_ranks(world(), [&](ProcessGroup& group) {
        const PowerSgdOptions options{.rank = 2, .start_step = 1, .seed = 5};
        const auto state = std::make_shared<PowerSgdState>(options);
        HookSteps steps(group, dtype, power_shapes, power_layout);
        for (int step = 0; step < 3; ++step) (void)steps.run(hook_of(state, batched));
        const auto loaded = std::make_shared<PowerSgdState>(options);
        loaded->load(state->save());
        EXPECT_EQ(loaded->step(), 3);
        EXPECT_EQ(loaded->save(), state->save());
        HookSteps others = HookSteps(group, dtype, power_shapes, power_layout);
        const auto later = [](std::size_t id, int rank, std::int64_t step, std::int64_t i) {
          return gradient_value(id, rank, step + 3, i);
        };
        for (int step = 0; step < 3; ++step)
          EXPECT_EQ(others.run(hook_of(loaded, batched), later), steps.run(hook_of(state, batched)))
              << "step " << step << " differs";
      });
}

TEST_P(PowerSgd, RebuiltBucketsKeepErrorsAndQ) {
  on_ranks(world(), [&](ProcessGroup& group) {
    const PowerSgdOptions options{.rank = 2, .start_step = 0};
    const auto state = std::make_shared<PowerSgdState>(options);
    const auto rebuilt = std::make_shared<PowerSgdState>(options);
    HookSteps steps(group, DType::f64, power_shapes, power_layout);
    HookSteps others(group, DType::f64, power_shapes, power_layout);
    for (int step = 0; step < 4; ++step) {
      if (step == 1) others.lay_out({{4, 0}, {3}, {1, 2}});
      if (step == 3) others.lay_out({{4, 3, 2, 1, 0}});
      expect_near(others.run(hook_of(rebuilt, false)), steps.run(hook_of(state, false)), 1e-10);
    }
  });
}

// Errors outlive a change of the layout. The new bucket is another square matrix.
TEST_P(PowerSgd, RebuiltBatchedBucketsKeepErrors) {
  on_ranks(world(), [&](ProcessGroup& group) {
    const auto state = std::make_shared<PowerSgdState>(
        PowerSgdOptions{.rank = 4, .start_step = 0, .warm_start = false});
    HookSteps steps(group, DType::f64, {{8, 8}, {8, 8}}, {{0}, {1}});
    const auto once = [](std::size_t id, int rank, std::int64_t step, std::int64_t i) {
      return step == 0 ? gradient_value(id, rank, 0, i) : 0.0;
    };
    Results sent;
    add(sent, steps.run(hook_of(state, true), once), 1);
    steps.lay_out({{1, 0}});  // The matrix is now 12 x 12, and every element has another place.
    for (int step = 0; step < 5; ++step) add(sent, steps.run(hook_of(state, true), once), 1);
    expect_near(sent, steps.mean(0, group.size()), 1e-9);
  });
}

TEST_P(PowerSgd, GradientsThatAreNotFiniteAreSeenAndForgotten) {
  on_ranks(world(), [&](ProcessGroup& group) {
    const auto state = std::make_shared<PowerSgdState>(PowerSgdOptions{.rank = 2, .start_step = 0});
    HookSteps steps(group, DType::f32, power_shapes, power_layout);
    (void)steps.run(hook_of(state, false));
    const auto overflow = [](std::size_t id, int rank, std::int64_t step, std::int64_t i) {
      return id == 0 && rank == 0 && i == 17 ? std::numeric_limits<double>::infinity()
                                             : gradient_value(id, rank, step, i);
    };
    const Results bad = steps.run(hook_of(state, false), overflow);
    EXPECT_FALSE(std::isfinite(bad[0][17]));
    for (int step = 0; step < 2; ++step)
      for (const auto& result : steps.run(hook_of(state, false)))
        for (const double x : result) ASSERT_TRUE(std::isfinite(x));
  });
}

// A column of Q that becomes 0 in a step with gradients of 0 has to come back.
TEST_P(PowerSgd, StepsWithoutGradientsDoNotEndTheWarmStart) {
  on_ranks(world(), [&](ProcessGroup& group) {
    const auto state = std::make_shared<PowerSgdState>(
        PowerSgdOptions{.rank = 64, .start_step = 0, .min_compression_rate = 0.001});
    HookSteps steps(group, DType::f64, power_shapes, power_layout);
    const auto zeros = [](std::size_t, int, std::int64_t, std::int64_t) { return 0.0; };
    const Results none = steps.run(hook_of(state, false), zeros);
    for (const auto& result : none)
      for (const double x : result) ASSERT_EQ(x, 0);
    expect_near(steps.run(hook_of(state, false)), steps.mean(1, group.size()), 1e-10);
  });
}

TEST_P(PowerSgd, WorksInsideOfACompression) {
  on_ranks(world(), [&](ProcessGroup& group) {
    const auto state = std::make_shared<PowerSgdState>(
        PowerSgdOptions{.rank = 64, .start_step = 1, .min_compression_rate = 0.001});
    const auto hook = ddp::fp16_compress_wrapper(ddp::power_sgd_hook(state));
    HookSteps steps(group, DType::f32, power_shapes, power_layout);
    for (int step = 0; step < 3; ++step)
      expect_near(steps.run(hook), steps.mean(step, group.size()), 1e-2);
  });
}

// Of four ranks the sum of the vector's gradients is beyond f16.
TEST_P(PowerSgd, TheMeanWithinACompressionIsFiniteWhereTheSumIsNot) {
  on_ranks(world(), [&](ProcessGroup& group) {
    const auto hook = ddp::fp16_compress_wrapper(ddp::power_sgd_hook(
        std::make_shared<PowerSgdState>(PowerSgdOptions{.rank = 1, .start_step = 0})));
    HookSteps steps(group, DType::f32, power_shapes, power_layout);
    const auto large = [](std::size_t id, int rank, std::int64_t step, std::int64_t i) {
      return id == 1 ? 20000.0 : gradient_value(id, rank, step, i);
    };
    const Results results = steps.run(hook, large);
    for (const double x : results[1]) ASSERT_NEAR(x, 20000, 32);
  });
}

// A hook keeps state per parameter, because the reducer changes the buckets after the first step.
TEST_P(PowerSgd, GivesEverythingBackInAReducer) {
  on_ranks(world(), [&](ProcessGroup& group) {
    std::vector<ddp::Parameter> parameters;
    for (const Shape& shape : power_shapes)
      parameters.push_back({to_string(shape), {nullptr, DType::f64, shape}});
    const auto power = std::make_shared<PowerSgdState>(
        PowerSgdOptions{.rank = 2, .start_step = 0, .warm_start = false});
    for (const ddp::CommHook& hook :
         {ddp::power_sgd_hook(power),
          ddp::batched_power_sgd_hook(std::make_shared<PowerSgdState>(power->options()))}) {
      ddp::GradientReducer reducer(group, parameters,
                                   {.first_bucket_cap = 1500, .bucket_cap = 2500});
      reducer.set_hook(hook);
      Results sent, want;
      for (int step = 0; step < 14; ++step) {
        Results results(power_shapes.size());
        Results means(power_shapes.size());
        for (std::size_t id = 0; id < power_shapes.size(); ++id)
          for (std::int64_t i = 0; i < power_shapes[id].numel(); ++i) {
            const double scale = step < 3 ? 1 : 0;
            results[id].push_back(scale * gradient_value(id, group.rank(), step, i));
            double sum = 0;
            for (int r = 0; r < group.size(); ++r) sum += scale * gradient_value(id, r, step, i);
            means[id].push_back(sum / group.size());
          }
        for (std::size_t id = 0; id < power_shapes.size(); ++id)  // In the order of registration.
          reducer.mark_ready(id, view(results[id], power_shapes[id]));
        reducer.finish();
        add(sent, results, 1);
        add(want, means, 1);
      }
      EXPECT_GT(reducer.buckets().size(), 1u);
      expect_near(sent, want, 1e-9);
    }
  });
}

TEST_P(PowerSgd, SaysWhatItSends) {
  on_ranks(world(), [&](ProcessGroup& group) {
    PowerSgdState state(PowerSgdOptions{.start_step = 1, .min_compression_rate = 1.5});
    const auto hook = [&](ddp::Bucket& bucket) { return ddp::power_sgd_hook(state, bucket); };
    HookSteps steps(group, DType::f32, power_shapes, power_layout);
    (void)steps.run(hook);
    EXPECT_EQ(state.compression_rate(), 1);
    (void)steps.run(hook);
    EXPECT_DOUBLE_EQ(state.compression_rate(), (120 + 9 + 120 + 1 + 120.) / (22 + 9 + 26 + 1 + 43));
  });
}

TEST_P(PowerSgd, RefusesWhatItCannotCompress) {
  on_ranks(world(), [&](ProcessGroup& group) {
    PowerSgdState state;
    const auto slices = std::make_shared<ddp::Bucket::Slices>();
    std::vector<std::complex<float>> numbers(4);
    ddp::Bucket other(group, numbers, slices);
    expect_error(Errc::unsupported,
                 {"power_sgd_hook takes f16, bf16, f32 and f64 in host memory",
                  "bucket 0 is complex64 on cpu"},
                 [&] { (void)ddp::power_sgd_hook(state, other); });
    ddp::Bucket far(group, TensorView(numbers.data(), DType::f32, {4}, {DeviceType::cuda, 1}),
                    slices);
    expect_error(Errc::unsupported, {"batched_power_sgd_hook takes", "f32 on cuda:1"},
                 [&] { (void)ddp::batched_power_sgd_hook(state, far); });
    expect_usable(group);
  });
}

}  // namespace
}  // namespace tutti::test
