#include <algorithm>
#include <array>
#include <memory>
#include <optional>

#include <tutti/ddp/hooks.hpp>
#include <tutti/ddp/power_sgd.hpp>
#include <tutti/ddp/sharded_update.hpp>

#include "conformance/ddp/host_network.hpp"

// A reducer that goes on over another group.

namespace tutti::test {
namespace {

using ddp::GradientReducer;
using ddp::PowerSgdState;
using ddp::ReducerOptions;

class ReducerOfGroups : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
  int last() const { return world().size - 1; }

  /// A group of the ranks below `size`, over connections of its own.
  ProcessGroup second_group(int rank, int size, const std::string& name = "second") {
    auto options = group_options(world(), rank, store_);
    options.size = size;
    options.name = name;
    return ProcessGroup::create(options);
  }

 private:
  std::shared_ptr<Store> store_ = make_memory_store();
};
INSTANTIATE_TEST_SUITE_P(Worlds, ReducerOfGroups, testing::ValuesIn(worlds_of_several()),
                         CaseName());

const Fresh quick{.timeout = 5s};
constexpr unsigned steps_before = 3;
constexpr unsigned steps_after = 4;

void train(HostNetwork<double>& network, GradientReducer& reducer, ProcessGroup& group,
           unsigned first, unsigned end) {
  for (unsigned step = first; step < end; ++step) {
    network.step(reducer, group, step);
    network.update(learning_rate);
  }
}

/// Trains until the last rank leaves, which ends a step of the others with an error, and on over
/// the ranks that are left. Expects the parameters of a training on one process.
void expect_goes_on(const World& world, const ReducerOptions& options,
                    const std::function<void(GradientReducer&)>& prepare = {}) {
  const auto want = trained_alone<double>(1, steps_before + steps_after);
  RankBarrier done(world.size);
  on_fresh_ranks(
      world,
      [&](ProcessGroup& group) {
        const int last = group.size() - 1;
        HostNetwork<double> network(group.rank() == 0 ? 1U : 7U);
        std::vector<double> buffer{1.0 * group.rank()};
        auto reducer = std::make_unique<GradientReducer>(
            group, network.parameters(), options, std::vector<ddp::Parameter>{{"buffer", buffer}});
        if (prepare) prepare(*reducer);
        train(network, *reducer, group, 0, steps_before);
        if (group.rank() == last) {
          reducer.reset();
          { const auto left = std::move(group); }
          done.wait();
          return;
        }
        expect_error({Errc::peer_lost, Errc::aborted, Errc::timeout}, {}, [&] {
          auto lost = network;
          lost.step(*reducer, group, steps_before);
        });
        if (group.rank() != 0) {  // As if this rank had ended the step.
          network.update(learning_rate);
          buffer[0] = 5;
        }
        auto smaller = group.shrink(std::array{last});
        reducer->set_group(smaller);
        EXPECT_EQ(buffer[0], 0);
        EXPECT_FALSE(reducer->is_reduced());
        train(network, *reducer, smaller, steps_before, steps_before + steps_after);
        EXPECT_LE(distance<double>(network, want), 1e-10)
            << "the parameters differ from one process";
        done.wait();
      },
      quick);
}

TEST_P(ReducerOfGroups, GoesOnOverTheRanksThatAreLeft) {
  expect_goes_on(world(), {});
}

TEST_P(ReducerOfGroups, GoesOnWithBucketsThatWereRebuilt) {
  expect_goes_on(world(), small_buckets());
}

TEST_P(ReducerOfGroups, GoesOnWithUnusedParameters) {
  auto options = small_buckets();
  options.find_unused_parameters = true;
  expect_goes_on(world(), options);
}

TEST_P(ReducerOfGroups, GoesOnWithoutTheCheckOfSteps) {
  auto options = small_buckets();
  options.check_steps = false;
  options.order_fixed = true;
  expect_goes_on(world(), options);
}

TEST_P(ReducerOfGroups, KeepsItsHook) {
  std::atomic<int> calls{0};
  expect_goes_on(world(), small_buckets(), [&](GradientReducer& reducer) {
    reducer.set_hook([&](ddp::Bucket& bucket) {
      ++calls;
      return ddp::all_reduce_hook(bucket);
    });
  });
  EXPECT_GT(calls, static_cast<int>(steps_before + steps_after));
}

TEST_P(ReducerOfGroups, TakesNewRanks) {
  const auto want = trained_alone<double>(1, steps_before + steps_after);
  on_threads(world().size, [&](int rank) {
    HostNetwork<double> network(rank == 0 ? 1U : 7U);
    std::optional<GradientReducer> reducer;
    if (rank != last()) {
      auto first = second_group(rank, last(), "first");
      reducer.emplace(first, network.parameters(), small_buckets());
      train(network, *reducer, first, 0, steps_before);
    }
    auto all = second_group(rank, world().size);
    if (reducer)
      reducer->set_group(all);
    else
      reducer.emplace(all, network.parameters(), small_buckets());
    train(network, *reducer, all, steps_before, steps_before + steps_after);
    EXPECT_LE(distance<double>(network, want), 1e-10) << "the parameters differ from one process";
  });
}

// The numbers of a reducer and a state that began with the smaller group.
TEST_P(ReducerOfGroups, PowerSgdGoesOnWithItsErrorAndFactors) {
  const ddp::PowerSgdOptions compressed{.start_step = 1};
  RankBarrier done(world().size);
  on_fresh_ranks(world(), [&](ProcessGroup& group) {
    HostNetwork<double> network(1);
    auto state = std::make_shared<PowerSgdState>(compressed);
    std::optional<GradientReducer> reducer(std::in_place, group, network.parameters(),
                                           small_buckets());
    reducer->set_hook(ddp::power_sgd_hook(state));
    train(network, *reducer, group, 0, steps_before);
    EXPECT_GT(state->compression_rate(), 1);
    const auto saved = state->save();
    auto smaller = group.split(group.rank() == last() ? -1 : 0);
    if (!smaller) return done.wait();
    reducer->set_group(*smaller);
    state->set_group(*smaller);
    auto copy = network;
    train(network, *reducer, *smaller, steps_before, steps_before + steps_after);

    auto loaded = std::make_shared<PowerSgdState>(compressed);
    loaded->load(saved);
    GradientReducer fresh(*smaller, copy.parameters(), small_buckets());
    fresh.set_hook(ddp::power_sgd_hook(loaded));
    train(copy, fresh, *smaller, steps_before, steps_before + steps_after);
    EXPECT_EQ(network.values, copy.values);
    EXPECT_EQ(state->save(), loaded->save());
    done.wait();
  });
}

TEST_P(ReducerOfGroups, PowerSgdAgreesAfterAStepThatDidNotEnd) {
  RankBarrier done(world().size);
  on_fresh_ranks(
      world(),
      [&](ProcessGroup& group) {
        HostNetwork<double> network(1);
        const ddp::PowerSgdOptions compressed{.start_step = 1};
        auto state = std::make_shared<PowerSgdState>(compressed);
        std::optional<GradientReducer> reducer(std::in_place, group,
                                               network.parameters());  // One bucket.
        reducer->set_hook(ddp::power_sgd_hook(state));
        train(network, *reducer, group, 0, steps_before);
        if (group.rank() == last()) {
          reducer.reset();
          state.reset();
          { const auto left = std::move(group); }
          return done.wait();
        }
        const auto before = state->save();
        expect_error({Errc::peer_lost, Errc::aborted, Errc::timeout}, {}, [&] {
          auto lost = network;
          lost.step(*reducer, group, steps_before);
        });
        auto smaller = group.shrink(std::array{last()});
        // A rank may have begun more steps than another one.
        if (group.rank() == 1) state->load(before);
        reducer->set_group(smaller);
        state->set_group(smaller);
        // Without errors and Q, unless loaded: those of the step are none.
        const bool is_empty = state->save().size() == PowerSgdState(compressed).save().size();
        EXPECT_EQ(is_empty, group.rank() != 1);
        train(network, *reducer, smaller, steps_before, steps_before + 20);
        auto step = state->step();
        smaller.broadcast(std::span(&step, 1), 0);
        EXPECT_EQ(step, state->step());
        for (const auto& mine : network.values) {
          auto first = mine;
          smaller.broadcast(first, 0);
          EXPECT_EQ(mine, first) << "differs from rank 0";
        }
        // A wrong error or Q would lead away from the exact training.
        const auto want = trained_alone<double>(1, steps_before + 20);
        EXPECT_LT(distance<double>(network, want),
                  distance(trained_alone<double>(1, steps_before), want) / 2);
        done.wait();
      },
      quick);
}

TEST_P(ReducerOfGroups, PowerSgdOfOtherOptionsIsAMismatchOnEveryRank) {
  on_ranks(world(), [](ProcessGroup& group) {
    PowerSgdState state({.rank = group.rank() == group.size() - 1 ? 2 : 1});
    expect_error(Errc::mismatch, {"rank 0 has rank 1", "has rank 2"},
                 [&] { state.set_group(group); });
    expect_usable(group);
  });
}

TEST_P(ReducerOfGroups, DropsAStepAndTellsHooksOfTheNewGroup) {
  on_fresh_ranks(world(), [&](ProcessGroup& group) {
    HostNetwork<double> network(1);
    GradientReducer reducer(group, network.parameters(), small_buckets());
    std::vector<std::array<double, 3>> seen;  // Generation, step and divisor.
    reducer.set_hook([&](ddp::Bucket& bucket) {
      seen.push_back(
          {1.0 * bucket.generation(), static_cast<double>(bucket.step()), bucket.divisor()});
      return ddp::all_reduce_hook(bucket);
    });
    reducer.set_divisor(2.5);
    train(network, reducer, group, 0, 2);
    EXPECT_EQ(seen.back(), (std::array{1.0, 1.0, 2.5}));
    reducer.mark_ready(3, network.gradient(3));
    auto second = second_group(group.rank(), group.size());
    reducer.set_group(second);
    expect_error(Errc::aborted, {"set_group() was called within the step"},
                 [&] { group.barrier(); });
    seen.clear();
    train(network, reducer, second, 0, 2);
    EXPECT_EQ(seen.front(), (std::array{2.0, 0.0, 2.5}));
    EXPECT_EQ(seen.back(), (std::array{3.0, 1.0, 2.5}));
  });
}

TEST_P(ReducerOfGroups, StaysInItsGroupAfterAMismatch) {
  const auto want = trained_alone<double>(1, steps_before + steps_after);
  on_fresh_ranks(world(), [&](ProcessGroup& group) {
    HostNetwork<double> network(1);
    GradientReducer reducer(group, network.parameters(), small_buckets());
    train(network, reducer, group, 0, steps_before);
    auto second = second_group(group.rank(), group.size());
    if (group.rank() == last())
      expect_error(Errc::mismatch, {"parameter 3"}, [&] {
        auto fewer = network.parameters();
        fewer.pop_back();
        GradientReducer other(second, fewer, small_buckets());
      });
    else
      expect_error(Errc::mismatch, {"parameter 3"}, [&] { reducer.set_group(second); });
    train(network, reducer, group, steps_before, steps_before + steps_after);
    EXPECT_LE(distance<double>(network, want), 1e-10);
    const auto scope = reducer.no_sync();
    expect_error(Errc::invalid_argument, {"within no_sync()"}, [&] { reducer.set_group(second); });
  });
}

TEST_P(ReducerOfGroups, ShardsOfTheOldGroupAreRefused) {
  on_fresh_ranks(world(), [&](ProcessGroup& group) {
    HostNetwork<double> network(1);
    GradientReducer reducer(group, network.parameters(), small_buckets());
    const auto update = [](const ddp::Shard&, const TensorView&, const ConstTensorView&) {};
    {
      ddp::ShardedUpdate sharded(reducer);
      network.step(reducer, group, 0);
      sharded.step(update);
      auto second = second_group(group.rank(), group.size());
      reducer.set_group(second);
      expect_error(Errc::invalid_argument, {"make a new ShardedUpdate"},
                   [&] { network.step(reducer, second, 1); });
    }
    auto third = second_group(group.rank(), group.size(), "third");
    reducer.set_group(third);
    ddp::ShardedUpdate sharded(reducer);
    network.step(reducer, third, 1);
    sharded.step(update);
    network.step(reducer, third, 2);
    sharded.step(update);
  });
}

}  // namespace
}  // namespace tutti::test
