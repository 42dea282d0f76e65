#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/ddp/local_sgd.hpp>
#include <tutti/ddp/power_sgd.hpp>

#include "support/errors.hpp"
#include "support/memories.hpp"
#include "support/ranks.hpp"

// Tests the state of hooks, not their results: refusals, saved states, memory.

namespace tutti::test {
namespace {

using ddp::PeriodicModelAverager;
using ddp::PostLocalSgdState;
using ddp::PowerSgdState;

template <typename F>
void expect_bad(const std::vector<std::string>& texts, F&& f) {
  expect_error(Errc::invalid_argument, texts, f);
}

TEST(HookState, BadOptionsAreRefused) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  expect_bad({"rank of PowerSGD is 0; it must be 1 or more"}, [] { PowerSgdState s({.rank = 0}); });
  expect_bad({"start_step of PowerSGD is -1; it must be 0 or more"},
             [] { PowerSgdState s({.start_step = -1}); });
  expect_bad({"min_compression_rate of PowerSGD is 0; it must be above 0"},
             [] { PowerSgdState s({.min_compression_rate = 0}); });
  expect_bad({"orthogonalization_epsilon of PowerSGD is nan"},
             [] { PowerSgdState s({.orthogonalization_epsilon = nan}); });
  expect_bad({"start_step of post_local_sgd_hook is -1"}, [] { PostLocalSgdState s(-1); });
  on_fresh_ranks({"local", 1, false}, [](ProcessGroup& group) {
    expect_bad({"period of PeriodicModelAverager is 0; it must be 1 or more"},
               [&] { PeriodicModelAverager a(group, 0); });
    expect_bad({"warmup_steps of PeriodicModelAverager is -1"},
               [&] { PeriodicModelAverager a(group, 1, -1); });
    PeriodicModelAverager averager(group, 1);
    expect_bad({"step of PeriodicModelAverager is -1"}, [&] { averager.set_step(-1); });
  });
}

TEST(HookState, ANullStateIsRefused) {
  expect_bad({"the state of power_sgd_hook is null; pass a PowerSgdState"},
             [] { (void)ddp::power_sgd_hook(std::shared_ptr<PowerSgdState>()); });
  expect_bad({"the state of batched_power_sgd_hook is null; pass a PowerSgdState"},
             [] { (void)ddp::batched_power_sgd_hook(std::shared_ptr<PowerSgdState>()); });
  expect_bad({"the state of post_local_sgd_hook is null; pass a PostLocalSgdState"},
             [] { (void)ddp::post_local_sgd_hook(std::shared_ptr<PostLocalSgdState>()); });
}

/// One bucket of one parameter [8, 6] over a group of one rank.
struct OneBucket {
  explicit OneBucket(ProcessGroup& group, Shape shape = {8, 6})
      : numbers(static_cast<std::size_t>(shape.numel())),
        bucket(group, numbers, std::make_shared<ddp::Bucket::Slices>(1, ddp::Slice{0, 0, shape})) {}
  void run(const ddp::CommHook& hook) {
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<float>(i * i % 17);
    hook(bucket).wait();
  }
  std::vector<float> numbers;
  ddp::Bucket bucket;
};

TEST(HookState, OtherBytesAreNotLoadedAndChangeNothing) {
  on_fresh_ranks({"local", 1, false}, [](ProcessGroup& group) {
    const auto power = std::make_shared<PowerSgdState>(
        ddp::PowerSgdOptions{.start_step = 0, .min_compression_rate = 1.1});
    const auto local = std::make_shared<PostLocalSgdState>();
    OneBucket(group).run(ddp::power_sgd_hook(power));
    OneBucket(group).run(ddp::post_local_sgd_hook(local));
    const auto check = [](ddp::HookState& state, ddp::HookState& other, const std::string& name) {
      const std::string saved = state.save();
      expect_bad({"(0 bytes) is not a saved state of " + name}, [&] { state.load(""); });
      expect_bad({"is not a saved state of " + name}, [&] { state.load(other.save()); });
      for (std::size_t i = 0; i < saved.size(); ++i) {
        std::string damaged = saved;
        damaged[i] = static_cast<char>(damaged[i] ^ 4);
        expect_bad({"saved state of " + name}, [&] { state.load(damaged); });
        expect_bad({"saved state of " + name}, [&] { state.load(saved.substr(0, i)); });
      }
      EXPECT_EQ(state.save(), saved);
    };
    check(*power, *local, "PowerSGD");
    check(*local, *power, "post_local_sgd_hook");
  });
}

TEST(HookState, OtherOptionsAreRefused) {
  const std::string saved = PowerSgdState({.rank = 2}).save();
  PowerSgdState({.rank = 2, .start_step = 5, .seed = 3}).load(saved);
  expect_bad({"rank is 2 in the saved state of PowerSGD and 1 in this one"},
             [&] { PowerSgdState().load(saved); });
  expect_bad({"error_feedback is true in the saved state of PowerSGD and false in this one"},
             [&] { PowerSgdState({.rank = 2, .error_feedback = false}).load(saved); });
  expect_bad({"warm_start is true in the saved state of PowerSGD and false in this one"},
             [&] { PowerSgdState({.rank = 2, .warm_start = false}).load(saved); });
  expect_bad({"min_compression_rate is 2 in the saved state of PowerSGD and 3 in this one"},
             [&] { PowerSgdState({.rank = 2, .min_compression_rate = 3}).load(saved); });
}

TEST(HookState, AStateOfAnotherModelOrHookIsRefused) {
  on_fresh_ranks({"local", 1, false}, [](ProcessGroup& group) {
    const ddp::PowerSgdOptions options{.start_step = 0, .min_compression_rate = 1.1};
    const auto power = std::make_shared<PowerSgdState>(options);
    OneBucket(group).run(ddp::power_sgd_hook(power));
    expect_bad({"batched_power_sgd_hook got the state of power_sgd_hook"},
               [&] { OneBucket(group).run(ddp::batched_power_sgd_hook(power)); });
    const auto loaded = std::make_shared<PowerSgdState>(options);
    loaded->load(power->save());
    expect_bad({"the error of parameter 0 has 48 elements of f32 in the hook's state, and 54 of "
                "f32 in its bucket"},
               [&] {
                 OneBucket(group, {9, 6}).run(ddp::power_sgd_hook(loaded));
               });
  });
}

TEST(HookState, BucketsComeInTheirOrder) {
  on_fresh_ranks({"local", 1, false}, [](ProcessGroup& group) {
    std::vector<float> numbers(64);
    const auto slices = std::make_shared<ddp::Bucket::Slices>(1, ddp::Slice{0, 0, {8, 8}});
    ddp::Bucket second(group, numbers, slices, 1, 2);
    PowerSgdState power({.start_step = 0});
    expect_bad({"power_sgd_hook got bucket 1 before bucket 0"},
               [&] { (void)ddp::power_sgd_hook(power, second); });
  });
}

TEST(HookState, ArraysAreAllocatedInTheFirstCompressedStep) {
  RecordingMemory memories[2];
  const Fresh fresh{
      .adjust = [&](GroupOptions& options) { options.memory = &memories[options.rank]; }};
  on_fresh_ranks(
      {"local", 2, false},
      [&](ProcessGroup& group) {
        const auto power = std::make_shared<PowerSgdState>(
            ddp::PowerSgdOptions{.start_step = 1, .min_compression_rate = 1.1});
        OneBucket bucket(group);
        const auto& memory = memories[group.rank()];
        const auto hook = ddp::power_sgd_hook(power);
        for (int step = 0; step < 2; ++step) bucket.run(hook);
        const int before = memory.allocations();
        EXPECT_GT(before, 0);
        for (int step = 0; step < 5; ++step) bucket.run(hook);
        EXPECT_EQ(memory.allocations(), before);
      },
      fresh);
}

}  // namespace
}  // namespace tutti::test
