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
  EXPECT_EQ(schedules, 60);
  EXPECT_GT(resets, 50);
}

}  // namespace
}  // namespace tutti::test
