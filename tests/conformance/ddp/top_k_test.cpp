#include <tutti/ddp/top_k.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "conformance/ddp/hook_steps.hpp"

namespace tutti::test {
namespace {

using ddp::TopKOptions;
using ddp::TopKState;

const std::vector<Shape> top_k_shapes{{12, 10}, {9}, {3, 4, 5}, Shape(), {0, 3}};
const std::vector<Ids> top_k_layout{{0, 1}, {2, 3, 4}};

class TopK : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Worlds, TopK, testing::ValuesIn(worlds()), CaseName());

/// Computes one bucket of all ranks in the simplest way, in the type of its elements.
template <typename T>
class Reference {
 public:
  Reference(Ids ids, int ranks) : ids_(std::move(ids)) {
    for (const std::size_t id : ids_)
      for (std::int64_t i = 0; i < top_k_shapes[id].numel(); ++i) places_.emplace_back(id, i);
    errors_.assign(index(ranks), std::vector<T>(places_.size()));
  }

  void step(std::int64_t step, double ratio, bool feedback, double divisor, Results& results) {
    const auto k = static_cast<std::size_t>(
        std::max(1.0, std::ceil(ratio * static_cast<double>(places_.size()))));
    std::vector<T> sums(places_.size());
    for (std::size_t r = 0; r < errors_.size(); ++r) {
      auto& mine = errors_[r];
      for (std::size_t i = 0; i < mine.size(); ++i)
        mine[i] = (feedback ? mine[i] : T(0)) +
                  static_cast<T>(gradient_value(places_[i].first, static_cast<int>(r), step,
                                                places_[i].second));
      std::vector<std::size_t> order(places_.size());
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::ranges::stable_sort(order, std::greater<>(),
                               [&](std::size_t i) { return std::abs(mine[i]); });
      for (std::size_t j = 0; j < k; ++j) {
        sums[order[j]] += mine[order[j]] * static_cast<T>(1 / divisor);
        mine[order[j]] = 0;
      }
    }
    for (std::size_t i = 0; i < places_.size(); ++i)
      results[places_[i].first].push_back(static_cast<double>(sums[i]));
  }

 private:
  Ids ids_;
  std::vector<std::pair<std::size_t, std::int64_t>> places_;
  std::vector<std::vector<T>> errors_;
};

template <typename T>
void expect_reference(ProcessGroup& group, double ratio, bool feedback, double divisor) {
  const auto state = std::make_shared<TopKState>(
      TopKOptions{.ratio = ratio, .start_step = 1, .error_feedback = feedback});
  HookSteps steps(group, dtype_of<T>, top_k_shapes, top_k_layout);
  steps.set_divisor(divisor);
  const double by = divisor == 0 ? group.size() : divisor;
  std::vector<Reference<T>> references;
  for (const Ids& ids : top_k_layout) references.emplace_back(ids, group.size());
  expect_near(steps.run(ddp::top_k_hook(state)), steps.mean(0, by), 1e-5);
  for (int step = 1; step < 5; ++step) {
    const Results got = steps.run(ddp::top_k_hook(state));
    Results want(top_k_shapes.size());
    for (auto& reference : references) reference.step(step, ratio, feedback, by, want);
    EXPECT_EQ(got, want) << "step " << step << " differs";
    expect_same_on_all_ranks(group, got);
  }
  EXPECT_EQ(state->step(), 5);
}

TEST_P(TopK, IsTheSumOfWhatRanksChose) {
  for (const double ratio : {0.001, 0.1, 0.5, 1.0})
    for (const bool feedback : {true, false})
      for (const double divisor : {0.0, 1.0, 3.0})
        on_ranks(world(), [&](ProcessGroup& group) {
          expect_reference<float>(group, ratio, feedback, divisor);
          expect_reference<double>(group, ratio, feedback, divisor);
        });
}

TEST_P(TopK, OfAllElementsIsTheReduction) {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::f64})
    on_ranks(world(), [&](ProcessGroup& group) {
      const auto state = std::make_shared<TopKState>(TopKOptions{.ratio = 1});
      HookSteps steps(group, dtype, top_k_shapes, top_k_layout);
      const double tolerance = dtype == DType::f64   ? 1e-14
                               : dtype == DType::f32 ? 1e-6
                               : dtype == DType::f16 ? 4e-3
                                                     : 4e-2;
      for (int step = 0; step < 3; ++step)
        expect_near(steps.run(ddp::top_k_hook(state)), steps.mean(step, group.size()), tolerance);
    });
}

// A gradient that was not sent is sent later. The values are small integers, so that no sum rounds.
TEST_P(TopK, ErrorsAndResultsTogetherAreTheGradients) {
  on_ranks(world(), [&](ProcessGroup& group) {
    const auto state = std::make_shared<TopKState>(TopKOptions{.ratio = 0.15});
    HookSteps steps(group, DType::f32, top_k_shapes, top_k_layout);
    steps.set_divisor(1);
    const auto gradient = [](std::size_t id, int rank, std::int64_t step, std::int64_t i) {
      return step < 3 ? std::round(50 * gradient_value(id, rank, step, i)) : 0;
    };
    Results sent, want;
    for (int step = 0; step < 10; ++step) {
      add(sent, steps.run(ddp::top_k_hook(state), gradient), 1);
      add(want, steps.mean(step, 1, gradient), 1);
    }
    expect_near(sent, want, 0);
  });
}

TEST_P(TopK, ContinuesFromASavedStateBitForBitInOtherBuckets) {
  on_ranks(world(), [&](ProcessGroup& group) {
    const TopKOptions options{.ratio = 0.2, .start_step = 1};
    const auto state = std::make_shared<TopKState>(options);
    HookSteps steps(group, DType::f32, top_k_shapes, top_k_layout);
    for (int step = 0; step < 3; ++step) (void)steps.run(ddp::top_k_hook(state));
    const auto loaded = std::make_shared<TopKState>(options);
    loaded->load(state->save());
    EXPECT_EQ(loaded->step(), 3);
    EXPECT_EQ(loaded->save(), state->save());
    HookSteps others(group, DType::f32, top_k_shapes, {{2, 3}, {4, 0, 1}});
    others.lay_out(top_k_layout);
    const auto later = [](std::size_t id, int rank, std::int64_t step, std::int64_t i) {
      return gradient_value(id, rank, step + 3, i);
    };
    for (int step = 0; step < 3; ++step)
      EXPECT_EQ(others.run(ddp::top_k_hook(loaded), later), steps.run(ddp::top_k_hook(state)))
          << "step " << step << " differs";
  });
}

TEST_P(TopK, RebuiltBucketsKeepErrors) {
  on_ranks(world(), [&](ProcessGroup& group) {
    const auto state = std::make_shared<TopKState>(TopKOptions{.ratio = 0.25});
    HookSteps steps(group, DType::f64, top_k_shapes, top_k_layout);
    const auto once = [](std::size_t id, int rank, std::int64_t step, std::int64_t i) {
      return step == 0 ? gradient_value(id, rank, 0, i) : 0;
    };
    Results sent;
    add(sent, steps.run(ddp::top_k_hook(state), once), 1);
    for (const auto& other : {std::vector<Ids>{{4, 3, 2, 1, 0}}, {{1}, {2, 0}, {4}, {3}}}) {
      steps.lay_out(other);
      for (int step = 0; step < 2; ++step) add(sent, steps.run(ddp::top_k_hook(state), once), 1);
    }
    expect_near(sent, steps.mean(0, group.size()), 1e-12);
  });
}

TEST_P(TopK, NanIsSent) {
  on_ranks(world(), [&](ProcessGroup& group) {
    const auto state = std::make_shared<TopKState>(TopKOptions{.ratio = 0.01});
    HookSteps steps(group, DType::f64, top_k_shapes, top_k_layout);
    const auto broken = [](std::size_t id, int rank, std::int64_t step, std::int64_t i) {
      return id == 2 && rank == 0 && i == 31 ? std::numeric_limits<double>::quiet_NaN()
                                             : gradient_value(id, rank, step, i);
    };
    EXPECT_TRUE(std::isnan(steps.run(ddp::top_k_hook(state), broken)[2][31]));
    for (const auto& result : steps.run(ddp::top_k_hook(state)))
      for (const double x : result) ASSERT_FALSE(std::isnan(x));
  });
}

TEST_P(TopK, RefusesWhatItCannotSend) {
  on_ranks(world(), [&](ProcessGroup& group) {
    TopKState state;
    const auto slices = std::make_shared<ddp::Bucket::Slices>();
    std::vector<float> numbers(4);
    ddp::Bucket other(group, TensorView(numbers.data(), DType::f8e5m2, {4}), slices);
    expect_error(Errc::unsupported,
                 {"top_k_hook takes f16, bf16, f32 and f64", "bucket 0 is f8e5m2 on cpu"},
                 [&] { (void)ddp::top_k_hook(state, other); });
    ddp::Bucket far(group, TensorView(numbers.data(), DType::f32, {4}, {DeviceType::cuda, 0}),
                    slices);
    expect_error(Errc::unsupported, {"in host memory", "f32 on cuda:0"},
                 [&] { (void)ddp::top_k_hook(state, far); });
    expect_usable(group);
  });
}

}  // namespace
}  // namespace tutti::test
