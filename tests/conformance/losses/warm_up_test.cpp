#include <tutti/losses/warm_up.hpp>

#include <cmath>
#include <cstring>
#include <limits>

#include <tutti/losses/cross_entropy.hpp>
#include <tutti/losses/smooth_ap.hpp>

#include "conformance/losses/loss_rows.hpp"

namespace tutti::test {
namespace {

using losses::Batch;
using losses::CrossEntropy;
using losses::LossResult;
using losses::SmoothAp;
using losses::WarmUp;

constexpr std::int64_t classes = 3;
constexpr std::int64_t rows_of_step = 13;
constexpr std::int64_t steps = 6;
constexpr std::int64_t steps_of_epoch = 2;

/// Two steps of warm-up, of blend and of the main phase: by steps or by epochs.
WarmUp::Options three_phases(bool by_steps) {
  WarmUp::Options options{.temp_start = 0.5, .temp_end = 0.1, .temp_decay_steps = 3};
  if (by_steps) {
    options.warmup_steps = options.blend_steps = 2;
  } else {
    options.warmup_epochs = options.blend_epochs = 1;
  }
  return options;
}

WarmUp make(const WarmUp::Options& options, GradScale scale = GradScale::sum) {
  return WarmUp(
      CrossEntropy({.classes = classes, .label_smoothing = 0.1, .grad_scale = scale}),
      std::make_unique<SmoothAp>(losses::SmoothApOptions{
          .classes = classes, .temperature = 0.2, .grad_scale = scale, .pool = {.queue = 20}}),
      options);
}

/// One training step with the hooks that a trainer calls before it.
template <typename T = double>
LossResult train(WarmUp& loss, ProcessGroup* group, std::int64_t step, const Layout& split = {}) {
  if (step % steps_of_epoch == 0) loss.start_epoch(step / steps_of_epoch);
  loss.start_step(step);
  const auto rows = make_loss_rows(rows_of_step, classes, static_cast<unsigned>(step));
  if (group == nullptr) return loss(rows.all<T>().view());
  return loss(*group,
              rows.part<T>(offset(split, group->rank()), split[index(group->rank())]).view());
}

class WarmUpOfRanks : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, WarmUpOfRanks, testing::ValuesIn(worlds()), CaseName());

/// Checks that `got`, the ranks' parts, equals `want` of one process. `scale` is the factor of the
/// gradient.
template <typename T>
void expect_same(const LossResult& got, const LossResult& want, ProcessGroup& group,
                 const Layout& split, double scale, double tolerance) {
  EXPECT_NEAR(got.loss, want.loss, tolerance * std::abs(want.loss));
  const auto all = values_of<T>(want.grad);
  const auto part = values_of<T>(got.grad);
  ASSERT_EQ(std::ssize(part), split[index(group.rank())] * classes);
  double largest = 0;
  for (const double g : all) largest = std::max(largest, std::abs(g));
  const auto first = static_cast<std::size_t>(offset(split, group.rank()) * classes);
  for (std::size_t i = 0; i < part.size(); ++i)
    ASSERT_NEAR(part[i], scale * all[first + i], scale * tolerance * largest) << i;
}

template <typename T>
void expect_one_process(const World& world, const std::vector<Layout>& splits, GradScale grad_scale,
                        double tolerance) {
  WarmUp alone = make(three_phases(true), grad_scale);
  std::vector<LossResult> want;
  for (std::int64_t step = 0; step < steps; ++step) want.push_back(train<T>(alone, nullptr, step));
  on_ranks(world, [&](ProcessGroup& group) {
    const double scale = grad_scale == GradScale::sum ? group.size() : 1;
    for (const Layout& split : splits) {
      WarmUp loss = make(three_phases(true), grad_scale);
      for (std::int64_t step = 0; step < steps; ++step) {
        SCOPED_TRACE("rows " + to_string(split) + ", step " + std::to_string(step));
        const auto got = train<T>(loss, &group, step, split);
        EXPECT_EQ(loss.in_warm_up(), step < 2);
        EXPECT_EQ(loss.in_blend(), step >= 2 && step < 4);
        expect_same<T>(got, want[static_cast<std::size_t>(step)], group, split, scale, tolerance);
      }
      EXPECT_EQ(loss.main().queued(), 20);
    }
  });
}

TEST_P(WarmUpOfRanks, EveryPhaseIsThatOfOneProcessForAnySplit) {
  const auto splits = splits_of(rows_of_step, GetParam().size);
  expect_one_process<double>(GetParam(), splits, GradScale::sum, 1e-12);
  expect_one_process<double>(GetParam(), {splits.back()}, GradScale::mean, 1e-12);
  expect_one_process<float>(GetParam(), {splits.back()}, GradScale::sum, 1e-5);
}

// The queue has the rows of the ranks that are left, as that of one process that had only these.
TEST_P(WarmUpOfRanks, GoesOnOverTheRanksThatAreLeft) {
  const int last = GetParam().size - 1;
  if (last == 0) GTEST_SKIP() << "no rank is left";
  const auto make_loss = [] {
    return WarmUp(CrossEntropy({.classes = classes}),
                  std::make_unique<SmoothAp>(losses::SmoothApOptions{
                      .classes = classes, .temperature = 0.2, .pool = {.queue = 100}}),
                  three_phases(true));
  };
  constexpr std::int64_t lost_in = 4;
  on_fresh_ranks(GetParam(), [&](ProcessGroup& group) {
    const auto split = splits_of(rows_of_step, group.size()).front();
    const auto rank = group.rank();
    WarmUp loss = make_loss();
    for (std::int64_t step = 0; step < lost_in; ++step) train(loss, &group, step, split);
    auto left = group.split(rank == last ? -1 : 0);
    if (!left) return;
    expect_error(Errc::invalid_argument, {"filled by rank"},
                 [&] { train(loss, &*left, lost_in, splits_of(rows_of_step, last).back()); });
    if (rank == 1) loss.start_step(lost_in + 7);  // Rank 0's position counts.
    loss.set_group(*left);

    WarmUp alone = make_loss();
    const std::int64_t rows_left = rows_of_step - split.back();
    for (std::int64_t step = 0; step < lost_in; ++step) {
      alone.start_step(step);
      const auto rows = make_loss_rows(rows_of_step, classes, static_cast<unsigned>(step));
      (void)alone(rows.part<double>(0, rows_left).view());
    }
    EXPECT_EQ(loss.main().queued(), alone.main().queued());
    const auto new_split = splits_of(rows_of_step, last).back();
    for (std::int64_t step = lost_in; step < lost_in + 3; ++step) {
      SCOPED_TRACE(step);
      const auto want = train(alone, nullptr, step);
      expect_same<double>(train(loss, &*left, step, new_split), want, *left, new_split, last,
                          1e-12);
    }
  });
}

// A state saved by W ranks is loaded by one process, and the reverse.
TEST_P(WarmUpOfRanks, WhatIsLoadedGoesOnAsIfNothingHadHappened) {
  for (const bool by_steps : {true, false}) {
    std::vector<LossResult> want;
    std::vector<double> temperatures;
    std::vector<std::string> saved;  // Before each step.
    WarmUp alone = make(three_phases(by_steps));
    for (std::int64_t step = 0; step < steps; ++step) {
      saved.push_back(alone.save());
      want.push_back(train(alone, nullptr, step));
      temperatures.push_back(alone.temperature());
    }
    PerRank<std::vector<std::string>> states(GetParam().size);
    on_ranks(GetParam(), [&](ProcessGroup& group) {
      const auto split = splits_of(rows_of_step, group.size()).back();
      const auto scale = static_cast<double>(group.size());
      const auto resume = [&](const std::string& state, std::int64_t first) {
        SCOPED_TRACE("resumed before step " + std::to_string(first));
        WarmUp loss = make(three_phases(by_steps));
        loss.load(group, state);
        for (std::int64_t step = first; step < steps; ++step) {
          const auto at = static_cast<std::size_t>(step);
          const auto got = train(loss, &group, step, split);
          EXPECT_EQ(loss.temperature(), temperatures[at]);
          expect_same<double>(got, want[at], group, split, scale, 1e-12);
        }
      };
      WarmUp loss = make(three_phases(by_steps));
      for (std::int64_t step = 0; step < steps; ++step) {
        const auto state = loss.save(group);
        states[group.rank()].push_back(state);
        if (step % 2 == 1) {  // In each phase.
          resume(state, step);
          resume(saved[static_cast<std::size_t>(step)], step);
        }
        train(loss, &group, step, split);
      }
    });
    for (const auto& of_rank : states.all()) {
      ASSERT_EQ(of_rank, states[0]) << "any rank may write for all";
    }
    for (std::int64_t first = 0; first < steps; ++first) {
      WarmUp loss = make(three_phases(by_steps));
      loss.load(states[0][static_cast<std::size_t>(first)]);
      for (std::int64_t step = first; step < steps; ++step)
        EXPECT_NEAR(train(loss, nullptr, step).loss, want[static_cast<std::size_t>(step)].loss,
                    1e-12);
    }
  }
}

TEST_P(WarmUpOfRanks, AMistakeOfOneRankIsAnErrorOnAllAndLeavesNoTrace) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const bool last = group.rank() == group.size() - 1;
    const auto split = splits_of(rows_of_step, group.size()).front();
    WarmUp loss = make(three_phases(true));
    for (std::int64_t step = 0; step < steps; ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      train(loss, &group, step, split);
      const auto before = loss.save(group);
      auto rows = make_loss_rows(4, classes).all();
      if (last) rows.logits[2] = std::numeric_limits<double>::quiet_NaN();
      expect_error(last ? Errc::invalid_argument : Errc::mismatch, {"logits[0, 2] is nan"},
                   [&] { loss(group, rows.view()); });
      EXPECT_EQ(loss.save(group), before);
    }
  });
}

class WarmUpOfSeveralRanks : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, WarmUpOfSeveralRanks, testing::ValuesIn(worlds_of_several()),
                         CaseName());

TEST_P(WarmUpOfSeveralRanks, RanksInOtherPlacesOfTheScheduleAreRefused) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const bool last = group.rank() == group.size() - 1;
    const auto rows = make_loss_rows(4, classes).all();
    WarmUp loss = make(three_phases(true));
    const auto refused = [&](std::int64_t step, const std::vector<std::string>& texts) {
      loss.start_step(last ? step + 1 : step);
      expect_error(Errc::mismatch, texts, [&] { loss(group, rows.view()); });
    };
    refused(1, {"cross_entropy of", "warm_up of", "main weight 0.333"});
    refused(2, {"main weight 0.333", "main weight 0.666"});
    refused(3, {"main weight 0.666", "smooth_ap"});
    refused(4, {"smooth_ap", "temperature"});
    expect_error(Errc::mismatch, {"epoch 0, step 4", "epoch 0, step 5"},
                 [&] { (void)loss.save(group); });
    loss.start_step(5);
    loss(group, rows.view());
  });
}

// The mixed values and their weights, computed by hand.

TEST(WarmUpAlone, ValueAndGradientAreTheSameMix) {
  for (const double final_weight : {1.0, 0.75}) {
    auto options = three_phases(true);
    options.final_main_weight = final_weight;
    WarmUp loss = make(options);
    const CrossEntropy first({.classes = classes, .label_smoothing = 0.1});
    SmoothAp main({.classes = classes, .pool = {.queue = 20}});
    const double weights[] = {0, 0, 1.0 / 3, 2.0 / 3, 1, 1};
    for (std::int64_t step = 0; step < steps; ++step) {
      const auto rows = make_loss_rows(rows_of_step, classes, static_cast<unsigned>(step)).all();
      std::vector<double> of_rows(rows.targets.size(), 1);
      of_rows[static_cast<std::size_t>(step)] = 3;
      auto batch = rows.view();
      batch.weight = of_rows;
      loss.start_step(step);
      const auto got = loss(batch);
      const double w = weights[step] * final_weight;
      EXPECT_DOUBLE_EQ(loss.main_weight(), w);
      const auto one = first(batch);
      if (w == 0) {
        EXPECT_EQ(got.loss, one.loss);
        EXPECT_EQ(values_of(got.grad), values_of(one.grad));
        EXPECT_TRUE(got.status.empty());
        continue;
      }
      main.set_temperature(loss.temperature());
      const auto other = main(batch);
      EXPECT_NEAR(got.loss, (1 - w) * one.loss + w * other.loss, 1e-15);
      for (std::size_t i = 0; i < rows.logits.size(); ++i)
        EXPECT_NEAR(values_of(got.grad)[i],
                    (1 - w) * values_of(one.grad)[i] + w * values_of(other.grad)[i], 1e-15);
      EXPECT_EQ(got.per_class, other.per_class);
      EXPECT_EQ(got.status, other.status);
    }
  }
}

TEST(WarmUpAlone, ALossWithoutWeightIsNotAsked) {
  int asked = 0;
  WarmUp loss(
      [&](ProcessGroup* group, const Batch& batch, const CallOptions& call) {
        ++asked;
        return group == nullptr ? CrossEntropy({.classes = classes})(batch)
                                : CrossEntropy({.classes = classes})(*group, batch, call);
      },
      std::make_unique<SmoothAp>(
          losses::SmoothApOptions{.classes = classes, .pool = {.queue = 100}}),
      three_phases(true));
  for (std::int64_t step = 0; step < steps; ++step) {
    train(loss, nullptr, step);
    EXPECT_EQ(asked, std::min<std::int64_t>(step + 1, 4));
    // The eleven rows of a step that are not ignored, from the blend on.
    EXPECT_EQ(loss.main().queued(), 11 * std::max<std::int64_t>(step - 1, 0));
  }
}

TEST(WarmUpAlone, EvaluationIsTheSameMixAndKeepsNothing) {
  WarmUp loss = make(three_phases(true));
  for (std::int64_t step = 0; step < steps; ++step) {
    const auto before = loss.save();
    auto rows = make_loss_rows(rows_of_step, classes, static_cast<unsigned>(step)).all();
    auto batch = rows.view();
    batch.training = false;
    WarmUp twin = make(three_phases(true));
    twin.load(before);
    twin.start_step(step);
    const auto got = twin(batch);
    const auto after = twin.save();
    twin.start_step(step);
    EXPECT_EQ(twin.save(), after);
    EXPECT_EQ(got.loss, train(loss, nullptr, step).loss);
    EXPECT_EQ(loss.main().queued() > twin.main().queued(), step >= 2 && step < 4) << step;
  }
}

TEST(WarmUpAlone, HalfTypesAreMixedInDouble) {
  std::vector<Float16> logits;
  for (const float x : {0.5F, 0.25F, -1.0F, 2.0F}) logits.emplace_back(x);
  const std::vector<std::int64_t> targets{1, 0, 1, 0};
  WarmUp loss(CrossEntropy(), std::make_unique<SmoothAp>(losses::SmoothApOptions{}),
              {.temp_start = 1, .final_main_weight = 0.5});
  loss.start_step(0);
  const auto got = loss({logits, targets});
  const auto first = CrossEntropy()({logits, targets});
  const auto main = SmoothAp({.temperature = 1})({logits, targets});
  ASSERT_EQ(got.grad.dtype(), DType::f16);
  const auto at = [](const Tensor& grad, std::size_t i) {
    return static_cast<double>(static_cast<float>(static_cast<const Float16*>(grad.data())[i]));
  };
  for (std::size_t i = 0; i < logits.size(); ++i)  // Rounded once, to 11 bits.
    EXPECT_NEAR(at(got.grad, i), (at(first.grad, i) + at(main.grad, i)) / 2,
                std::abs(at(got.grad, i)) / 2048);
}

TEST_P(WarmUpOfRanks, AFirstLossOfAnotherShapeOnOneRankIsAnErrorOnAll) {
  const auto rows = make_loss_rows(8, 1).all();
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const bool last = group.rank() == group.size() - 1;
    WarmUp loss(
        [&](ProcessGroup*, const Batch& batch, const CallOptions&) {
          LossResult result;
          result.grad = Tensor(host_memory(), last ? Shape{0} : batch.logits.shape, DType::f64);
          return result;
        },
        std::make_unique<SmoothAp>(losses::SmoothApOptions{}), {.final_main_weight = 0.5});
    loss.start_step(0);
    expect_error(last ? Errc::invalid_argument : Errc::mismatch, {"gradient of the first loss"},
                 [&] { loss(group, rows.view()); });
    group.barrier();
  });
}

// Every rank already has all rows; so does the first loss.
TEST_P(WarmUpOfRanks, WithGatheredRowsIsThatOfOneProcess) {
  const auto rows = make_loss_rows(12, 1).all();
  const auto make_one = [] {
    return WarmUp(CrossEntropy({.reduction = losses::Reduction::sum}),
                  std::make_unique<SmoothAp>(losses::SmoothApOptions{.pool = {.gather = false}}),
                  {.final_main_weight = 0.25});
  };
  WarmUp alone = make_one();
  alone.start_step(0);
  const auto want = alone(rows.view());
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    WarmUp loss = make_one();
    loss.start_step(0);
    const auto got = loss(group, rows.view());
    EXPECT_EQ(got.loss, want.loss);
    EXPECT_EQ(std::memcmp(got.grad.data(), want.grad.data(), want.grad.bytes()), 0);
  });
}

TEST(WarmUpAlone, WarnsOnceWhenStepsAreNotCounted) {
  std::vector<std::string> output;
  auto options = three_phases(false);
  options.logger = [&](LogLevel level, std::string_view text) {
    EXPECT_EQ(level, LogLevel::warning);
    output.emplace_back(text);
  };
  const auto rows = make_loss_rows(4, classes).all();
  WarmUp loss = make(options);
  loss(rows.view());
  EXPECT_TRUE(output.empty()) << "in the warm-up there is nothing to count";
  for (const std::int64_t epoch : {1, 2, 3}) {
    loss.start_epoch(epoch);
    loss(rows.view());
  }
  ASSERT_EQ(output.size(), 1U);
  EXPECT_NE(output[0].find("start_step() was never called"), std::string::npos);
  WarmUp counted = make(options);
  counted.start_epoch(1);
  counted.start_step(0);
  counted(rows.view());
  EXPECT_EQ(output.size(), 1U);
  WarmUp resumed = make(options);
  resumed.load(counted.save());
  resumed(rows.view());
  EXPECT_EQ(output.size(), 1U) << "steps were counted before it was saved";
}

TEST(WarmUpAlone, WarnsInAWarmUpOfUncountedSteps) {
  std::vector<std::string> output;
  auto options = three_phases(true);
  options.logger = [&](LogLevel, std::string_view text) { output.emplace_back(text); };
  const auto rows = make_loss_rows(4, classes).all();
  WarmUp loss = make(options);
  loss(rows.view());
  loss(rows.view());
  ASSERT_EQ(output.size(), 1U);
  EXPECT_NE(output[0].find("the warm-up does not end"), std::string::npos);
}

TEST(WarmUpAlone, WhatWasNotSavedIsRefusedAndChangesNothing) {
  WarmUp loss = make(three_phases(true));
  for (std::int64_t step = 0; step < 3; ++step) train(loss, nullptr, step);
  const auto state = loss.save();
  WarmUp target = make(three_phases(true));
  for (std::int64_t step = 0; step < 5; ++step) train(target, nullptr, step);
  const auto before = target.save();
  ASSERT_NE(before, state);
  const auto refused = [&](const std::string& text, const std::string& bytes) {
    expect_error(Errc::invalid_argument, {text}, [&] { target.load(bytes); });
    ASSERT_EQ(target.save(), before);
  };
  refused("the given state (0 bytes) is not a saved state", "");
  refused("is not a saved state", std::string(1000, 'x'));
  for (std::size_t size = 0; size < state.size(); ++size) refused("", state.substr(0, size));
  refused("damaged", state + "x");
  for (std::size_t i = 0; i < state.size(); ++i) {
    auto damaged = state;
    damaged[i] = static_cast<char>(damaged[i] ^ (1 << i % 8));
    refused("", damaged);
  }
  refused("counts epochs, this one counts steps", make(three_phases(false)).save());
  WarmUp shorter(
      CrossEntropy({.classes = classes}),
      std::make_unique<SmoothAp>(losses::SmoothApOptions{.classes = classes, .pool = {.queue = 5}}),
      three_phases(true));
  refused("queue of 5 rows", shorter.save());
  target.load(state);
  EXPECT_NE(target.save(), before);
}

TEST(WarmUpAlone, OptionsThatContradictEachOtherAreRefused) {
  const auto refused = [](const std::string& text, const WarmUp::Options& options) {
    expect_error(Errc::invalid_argument, {"warm_up", text}, [&] { make(options); });
  };
  refused("warmup_epochs is 1 and warmup_steps 5", {.warmup_epochs = 1, .warmup_steps = 5});
  refused("blend_epochs is 2 and blend_steps 4",
          {.warmup_steps = 1, .blend_epochs = 2, .blend_steps = 4});
  refused("blend_steps is 4, but warmup_steps is not set", {.warmup_epochs = 1, .blend_steps = 4});
  refused("warmup_steps is 1 and blend_epochs is 2", {.warmup_steps = 1, .blend_epochs = 2});
  refused("warmup_epochs is -1", {.warmup_epochs = -1});
  refused("warmup_steps is -2", {.warmup_steps = -2});
  refused("blend_epochs is -1", {.blend_epochs = -1});
  refused("blend_steps is -1", {.warmup_steps = 0, .blend_steps = -1});
  for (const double bad : {0.0, -0.5, 1.01, std::nan("")})
    refused("final_main_weight is", {.final_main_weight = bad});
  for (const double bad : {0.0, -1.0, std::nan(""), HUGE_VAL}) {
    refused("temp_start is", {.temp_start = bad});
    refused("temp_end is", {.temp_end = bad});
  }
  refused("temp_decay_steps is 0", {.temp_decay_steps = 0});
  expect_error(Errc::invalid_argument, {"the main loss is null"},
               [] { WarmUp(CrossEntropy(), nullptr); });
  expect_error(Errc::invalid_argument, {"the first loss is null"},
               [] { WarmUp(nullptr, std::make_unique<SmoothAp>(losses::SmoothApOptions{})); });
  WarmUp loss = make({});
  expect_error(Errc::invalid_argument, {"the epoch is -1"}, [&] { loss.start_epoch(-1); });
  expect_error(Errc::invalid_argument, {"the step is -1"}, [&] { loss.start_step(-1); });
}

}  // namespace
}  // namespace tutti::test
