// A rank is killed within a step of a GradientReducer. Every survivor gets a named error in time,
// and the survivors train on in a new group as one process would. Ranks are processes.

#include <signal.h>

#include <chrono>
#include <optional>
#include <string>

#include <fmt/format.h>

#include <tutti/ddp/hooks.hpp>
#include <tutti/ddp/sharded_update.hpp>

#include "conformance/ddp/host_network.hpp"
#include "rank_processes.hpp"

namespace tutti::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr unsigned steps = 8;
constexpr auto bound = 20s;  // The timeout of RankProcess::options(). No error may need it.

/// The places in a step at which a rank is killed. The buckets are {b2, w2} and {b1, w1}.
enum class Point : std::uint8_t {
  before_the_first_mark,
  between_the_marks_of_a_bucket,
  between_buckets,
  between_the_marks_of_the_last_bucket,
  before_finish,
  in_finish,  // At the launch of a bucket, which then lacks a gradient.
};

struct Case {
  Point point = Point::before_the_first_mark;
  int size = 3;
  int killed = 0;
  unsigned step = 0;  // In step 0 the buckets are not yet rebuilt.
  bool checked = false;
  bool sharded = false;
};

std::string to_string(const Case& c) {
  constexpr const char* points[] = {"before_the_first_mark", "between_the_marks_of_a_bucket",
                                    "between_buckets",       "between_the_marks_of_the_last_bucket",
                                    "before_finish",         "in_finish"};
  return fmt::format("{}_of_step_{}_rank_{}_of_{}_{}{}", points[static_cast<int>(c.point)], c.step,
                     c.killed, c.size, c.checked ? "checked" : "normal",
                     c.sharded ? "_sharded" : "");
}

/// Sharded buckets have a hook of their own, so a rank cannot be killed by its hook.
bool may_be_sharded(Point point) {
  return point != Point::in_finish;
}

/// Each point in the first step and in a later one; modes, ranks and the kind of update in turn.
std::vector<Case> cases() {
  std::vector<Case> all;
  for (int i = 0; i < 12; ++i) {
    const auto point = static_cast<Point>(i / 2);
    const int size = 3 + i % 3 % 2;
    all.push_back({.point = point,
                   .size = size,
                   .killed = (i + i / 4) % size,
                   .step = i % 2 == 0 ? 0U : 3U,
                   .checked = i % 4 == 1 || i % 4 == 2,
                   .sharded = i % 3 == 0 && may_be_sharded(point)});
  }
  return all;
}

std::vector<Case> all_cases() {
  std::vector<Case> all;
  for (int point = 0; point < 6; ++point)
    for (const unsigned step : {0U, 3U})
      for (const bool checked : {false, true})
        for (const bool sharded : {false, true})
          for (const int killed : {0, 1, 2})
            if (!sharded || may_be_sharded(static_cast<Point>(point)))
              all.push_back({static_cast<Point>(point), 3, killed, step, checked, sharded});
  return all;
}

class Survivors : public testing::TestWithParam<Case> {};
struct CaseText {
  std::string operator()(const testing::TestParamInfo<Case>& info) const {
    return to_string(info.param);
  }
};
INSTANTIATE_TEST_SUITE_P(Points, Survivors, testing::ValuesIn(cases()), CaseText());
INSTANTIATE_TEST_SUITE_P(SlowAllPoints, Survivors, testing::ValuesIn(all_cases()), CaseText());

/// One rank's training, over one group after the other.
class Training {
 public:
  Training(const Case& c, RankProcess& process) : case_(c), process_(process) {}

  /// Trains until all steps are made or the group breaks. Returns the time from the death to the
  /// error, or nothing after the last step.
  std::optional<Clock::duration> train(ProcessGroup& group) {
    ddp::ReducerOptions options{.first_bucket_cap = 256};
    options.find_unused_parameters = case_.point == Point::in_finish;
    ddp::GradientReducer reducer(group, network_.parameters(), options);
    std::optional<ddp::ShardedUpdate> sharded;
    if (case_.sharded) sharded.emplace(reducer);
    group.broadcast(std::span(&step_, 1), 0);
    Clock::time_point begin;
    auto before = network_.values;
    try {
      for (; step_ < steps; ++step_) {
        begin = Clock::now();
        before = network_.values;
        if (dies()) die_in_step(reducer);
        network_.step(reducer, group, step_);
        if (case_.sharded)
          update_shards(*sharded);
        else
          network_.update(learning_rate);
      }
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == Errc::peer_lost || error.code() == Errc::aborted) << error.what();
      const auto late = Clock::now() - begin;
      if (case_.sharded && reducer.is_reduced()) {
        // The dead rank gave its gradients, and this rank updated its own shards alone.
        network_.values = before;
      } else {
        EXPECT_FALSE(reducer.is_reduced());
        if (case_.sharded)
          expect_error(Errc::invalid_argument, {"ShardedUpdate::step: the reducer"},
                       [&] { update_shards(*sharded); });
      }
      expect_broken(group, reducer);
      return late;
    }
    return std::nullopt;
  }

  const HostNetwork<double>& network() const { return network_; }
  unsigned step() const { return step_; }

 private:
  bool dies() const { return process_.rank() == case_.killed && step_ == case_.step; }

  [[noreturn]] void die_in_step(ddp::GradientReducer& reducer) {
    if (case_.point == Point::in_finish)
      reducer.set_hook([](ddp::Bucket& bucket) {
        if (bucket.is_last()) ::raise(SIGKILL);
        return ddp::all_reduce_hook(bucket);
      });
    const std::size_t marks =
        case_.point == Point::in_finish ? 3 : static_cast<std::size_t>(case_.point);
    for (std::size_t i = 0; i < marks; ++i) reducer.mark_ready(3 - i, network_.gradient(3 - i));
    if (case_.point == Point::in_finish) reducer.finish();
    ::raise(SIGKILL);
    throw std::logic_error("a killed process goes on");
  }

  void update_shards(ddp::ShardedUpdate& sharded) {
    sharded.step(
        [](const ddp::Shard&, const TensorView& parameter, const ConstTensorView& gradient) {
          const auto values = parameter.values<double>();
          for (std::size_t i = 0; i < values.size(); ++i)
            values[i] -= learning_rate * gradient.values<double>()[i];
        });
  }

  /// The program may ignore the error of finish(): the next bucket gets it too.
  void expect_broken(ProcessGroup& group, ddp::GradientReducer& reducer) {
    expect_error(Errc::aborted, {"the group is broken"}, [&] {
      for (std::size_t id = 4; id-- > 0;) reducer.mark_ready(id, network_.gradient(id));
      reducer.finish();
    });
    expect_error(Errc::aborted, {"the group is broken"}, [&] { group.barrier(); });
  }

  const Case& case_;
  RankProcess& process_;
  HostNetwork<double> network_{1};
  unsigned step_ = 0;
};

TEST_P(Survivors, GetANamedErrorInTimeAndTrainOn) {
  const Case& c = GetParam();
  const auto want = trained_alone<double>(1, steps);
  const auto output =
      on_processes({.size = c.size, .dies = c.killed, .limit = 120s}, [&](RankProcess& process) {
        Training training(c, process);
        auto options = process.options("all");
        options.checked = c.checked;
        std::optional<ProcessGroup> group = ProcessGroup::create(options);
        const auto late = training.train(*group);
        if (!late) throw std::runtime_error("it got no error");
        EXPECT_LT(*late, bound) << "the error came by the deadline";
        const auto start = Clock::now();
        group = group->shrink();
        EXPECT_LT(Clock::now() - start, patience() * 1s);
        EXPECT_EQ(group->size(), c.size - 1);
        EXPECT_EQ(group->rank(), process.rank() - (process.rank() > c.killed ? 1 : 0));
        EXPECT_EQ(training.train(*group), std::nullopt);
        // The order of the sum over ranks differs from one process.
        EXPECT_LE(distance<double>(training.network(), want), 1e-10);
        return fmt::format("{:.3f}", std::chrono::duration<double>(*late).count());
      });
  std::string seconds;
  for (int rank = 0; rank < c.size; ++rank)
    if (rank != c.killed) seconds += " " + output[static_cast<std::size_t>(rank)];
  fmt::print("errors after{} s\n", seconds);
}

}  // namespace
}  // namespace tutti::test
