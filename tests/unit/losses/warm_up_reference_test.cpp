#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/losses/cross_entropy.hpp>
#include <tutti/losses/smooth_ap.hpp>
#include <tutti/losses/warm_up.hpp>

#include "support/recorded.hpp"

// Compares with the package imbalanced-losses 0.6.0: tests/data/losses/warm_up.txt, made by
// tests/data/losses/record_warm_up.py.

namespace tutti::test {
namespace {

using losses::WarmUp;

WarmUp::Options options_of(const Recorded& c) {
  WarmUp::Options o{.temp_start = c.number("temp_start"),
                    .temp_end = c.number("temp_end"),
                    .temp_decay_steps = c.integer("temp_decay_steps"),
                    .final_main_weight = c.number("final_main_weight"),
                    .reset_queue_each_epoch = c.integer("reset_queue_each_epoch") != 0};
  if (c.options.contains("warmup_epochs")) o.warmup_epochs = c.integer("warmup_epochs");
  if (c.options.contains("blend_epochs")) o.blend_epochs = c.integer("blend_epochs");
  if (c.options.contains("warmup_steps")) o.warmup_steps = c.integer("warmup_steps");
  if (c.options.contains("blend_steps")) o.blend_steps = c.integer("blend_steps");
  return o;
}

/// The fields of a line from `begin` on.
class Reader {
 public:
  explicit Reader(const std::vector<double>& numbers) : at_(numbers.begin()), end_(numbers.end()) {}
  bool done() const { return at_ == end_; }
  double next() { return done() ? throw std::out_of_range("the line is too short") : *at_++; }
  std::int64_t integer() { return static_cast<std::int64_t>(next()); }

 private:
  std::vector<double>::const_iterator at_, end_;
};

TEST(WarmUpReference, TheScheduleIsThatOfThePackage) {
  const std::vector<double> score{1};
  const std::vector<std::int64_t> target{1};
  int schedules = 0;
  int resets = 0;
  for (const auto& c : read_recorded(RECORDED "/warm_up.txt")) {
    if (!c.words.starts_with("schedule")) continue;
    SCOPED_TRACE(c.words);
    ++schedules;
    WarmUp loss(losses::CrossEntropy(),
                std::make_unique<losses::SmoothAp>(losses::SmoothApOptions{
                    .temperature = c.number("temperature"), .pool = {.queue = 4}}),
                options_of(c));
    int number = 0;
    for (Reader call(c.numbers.at(0)); !call.done(); ++number) {
      SCOPED_TRACE("call " + std::to_string(number));
      loss.main()({score, target});  // So that a reset of the queue is visible.
      ASSERT_GT(loss.main().queued(), 0);
      const bool step = call.next() != 0;
      step ? loss.start_step(call.integer()) : loss.start_epoch(call.integer());
      EXPECT_DOUBLE_EQ(loss.main_weight(), call.next());
      const double temperature = call.next();
      EXPECT_NEAR(loss.temperature(), temperature,
                  1e-14 * temperature);  // Two implementations of exp() may differ.
      EXPECT_EQ(loss.in_warm_up(), call.next() != 0);
      EXPECT_EQ(loss.in_blend(), call.next() != 0);
      const bool reset = call.next() != 0;
      EXPECT_EQ(loss.main().queued() == 0, reset);
      resets += reset ? 1 : 0;
    }
  }
  EXPECT_EQ(schedules, 240);
  EXPECT_GT(resets, 100);
}

TEST(WarmUpReference, LossesAreMixedAsInThePackage) {
  int steps = 0;
  for (const auto& c : read_recorded(RECORDED "/warm_up.txt")) {
    if (!c.words.starts_with("losses")) continue;
    SCOPED_TRACE(c.words);
    const auto classes = c.integer("classes");
    WarmUp loss(losses::CrossEntropy({.classes = classes}),
                std::make_unique<losses::SmoothAp>(losses::SmoothApOptions{
                    .classes = classes, .temperature = 0.2, .pool = {.queue = 9}}),
                options_of(c));
    std::int64_t epoch = -1;
    for (const auto& field : c.numbers) {
      Reader recorded(field);
      if (const auto now = recorded.integer(); now != epoch) loss.start_epoch(epoch = now);
      const auto step = recorded.integer();
      SCOPED_TRACE("step " + std::to_string(step));
      loss.start_step(step);
      std::vector<std::int64_t> targets(static_cast<std::size_t>(recorded.integer()));
      std::vector<double> logits(targets.size() * static_cast<std::size_t>(classes));
      for (auto& z : logits) z = static_cast<float>(recorded.next());
      for (auto& y : targets) y = recorded.integer();
      const auto got = loss({view(std::span(logits), {std::ssize(targets), classes}), targets});
      EXPECT_NEAR(got.loss, recorded.next(), 1e-10);
      for (std::size_t i = 0; i < logits.size(); ++i)
        EXPECT_NEAR(static_cast<const double*>(got.grad.data())[i], recorded.next(), 1e-10) << i;
      EXPECT_TRUE(recorded.done());
      ++steps;
    }
  }
  EXPECT_EQ(steps, 48);
}

}  // namespace
}  // namespace tutti::test
