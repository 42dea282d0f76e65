#include <algorithm>
#include <cmath>
#include <set>

#include <tutti/losses/smooth_ap.hpp>

#include "conformance/losses/pool_calls.hpp"
#include "support/fault_backend.hpp"

// Failed calls of ranking losses leave the loss unchanged. Losses whose calls differ from those of
// the other ranks are refused.

namespace tutti::test {
namespace {

using losses::PoolOptions;
using losses::RankingLoss;

/// This rank's rows of a call.
PoolRows part_of(const PoolSequence& sequence, std::size_t call, const ProcessGroup& group) {
  const auto split = pool_split(sequence.calls[call].rows, group.size(), call);
  return sequence.rows(call).part(offset(split, group.rank()), split[index(group.rank())]);
}

class PoolRefusals : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }
  int last() const { return world().size - 1; }
};
INSTANTIATE_TEST_SUITE_P(Worlds, PoolRefusals, testing::ValuesIn(worlds()), CaseName());

class PoolRefusalsOfSeveral : public PoolRefusals {};
INSTANTIATE_TEST_SUITE_P(Worlds, PoolRefusalsOfSeveral, testing::ValuesIn(worlds_of_several()),
                         CaseName());

TEST_P(PoolRefusals, TheRightCallAfterAWrongOneGivesWhatItWouldHaveGiven) {
  const auto sequence = pool_sequence(3, 20, false);
  const PoolOptions pool{.queue = 20, .max_rows = 15, .seed = 8};
  for (const auto& kind : {smooth_ap_kind(), recall_kind(), pairwise_kind()}) {
    const auto want = alone(sequence, kind, pool);
    on_ranks(world(), [&](ProcessGroup& group) {
      const auto loss = kind.make(3, pool);
      for (std::size_t i = 0; i < sequence.calls.size(); ++i) {
        auto wrong = make_pool_rows(i % 2 == 0 ? 4 : 900, 3, 1);  // In one message, and not.
        if (group.rank() == last()) wrong.logits[3] = std::nan("");
        expect_error({Errc::invalid_argument, Errc::mismatch}, {"logits[1, 0] is nan"},
                     [&] { call_pool(*loss, &group, wrong); });
        expect_calls(*loss, group, sequence, want, i, i + 1);
      }
    });
  }
}

TEST_P(PoolRefusalsOfSeveral, RanksThatDisagreeOfWhatACallIsAreRefused) {
  const auto sequence = pool_sequence(1, 20, false);
  const auto want = by_list_of_rows(sequence, recall_kind(), 20);
  on_ranks(world(), [&](ProcessGroup& group) {
    const bool odd = group.rank() == last();
    const auto loss = recall_kind().make(1, {.queue = 20});
    const auto mine = part_of(sequence, 0, group);
    expect_error(Errc::mismatch, {"training", "evaluation"},
                 [&] { call_pool(*loss, &group, mine, false, odd); });
    expect_error(Errc::mismatch, {"logits f32", "logits f64"},
                 [&] { call_pool(*loss, &group, mine, odd); });
    loss->set_temperature(odd ? 0.5 : 0.25);
    expect_error(Errc::mismatch, {"temperature 0.5", "temperature 0.25"},
                 [&] { call_pool(*loss, &group, mine); });
    expect_error(Errc::mismatch, {"temperature 0.5", "temperature 0.25"},
                 [&] { (void)loss->save(group); });
    loss->set_temperature(0.2);
    struct Pair {
      PoolOptions mine, other;
      const char* text;
    };
    for (const Pair& pair : {Pair{{.queue = 20}, {.queue = 21}, "queue 21"},
                             {{.max_rows = 20}, {.max_rows = 19}, "max_rows 19"},
                             {{.max_rows = 9}, {.max_rows = 9, .seed = 6}, "seed 6"},
                             {{}, {.other_targets = true}, "other_targets"}}) {
      const auto differs = recall_kind().make(1, odd ? pair.other : pair.mine);
      expect_error(Errc::mismatch, {"recall_at_quantile", pair.text},
                   [&] { call_pool(*differs, &group, mine); });
    }
    expect_calls(*loss, group, sequence, want, 0, 2);
  });
}

TEST_P(PoolRefusalsOfSeveral, RanksThatRememberOtherCallsAreRefused) {
  const auto sequence = pool_sequence(1, 20, false);
  const auto want = by_list_of_rows(sequence, recall_kind(), 20);
  on_ranks(world(), [&](ProcessGroup& group) {
    const bool odd = group.rank() == last();
    const auto loss = recall_kind().make(1, {.queue = 20});
    const auto expect_refused = [&] {
      const auto queued = loss->queued();
      expect_error(Errc::mismatch, {"recall_at_quantile", "queue 20 of"},
                   [&] { call_pool(*loss, &group, part_of(sequence, 1, group)); });
      expect_error(Errc::mismatch, {"recall_at_quantile", "queue 20 of"},
                   [&] { (void)loss->save(group); });
      EXPECT_EQ(loss->queued(), queued);
    };
    expect_calls(*loss, group, sequence, want, 0, 1);
    const auto early = loss->save(group);
    if (odd) loss->reset_queue();
    expect_refused();
    loss->reset_queue();
    expect_calls(*loss, group, sequence, want, 0, 4);
    const auto late = loss->save(group);
    if (odd) loss->load(group, early);
    expect_refused();
    loss->load(group, late);
    expect_calls(*loss, group, sequence, want, 4, sequence.calls.size());
  });
}

// The sample depends on the loss's earlier calls, with or without a queue.
TEST_P(PoolRefusalsOfSeveral, ARankThatHasMadeACallMoreIsRefused) {
  const auto sequence = pool_sequence(1, 0, false);
  const PoolOptions pool{.max_rows = 9};
  const auto want = alone(sequence, recall_kind(), pool);
  on_ranks(world(), [&](ProcessGroup& group) {
    const auto loss = recall_kind().make(1, pool);
    expect_calls(*loss, group, sequence, want, 0, 1);
    const auto state = loss->save(group);
    if (group.rank() == last()) call_pool(*loss, nullptr, make_pool_rows(12, 1, 1));
    expect_error(Errc::mismatch, {"after 1 calls", "after 2 calls"},
                 [&] { call_pool(*loss, &group, part_of(sequence, 1, group)); });
    loss->load(group, state);
    expect_calls(*loss, group, sequence, want, 1, sequence.calls.size());
  });
}

// A queue belongs to the ranks that filled it.
TEST_P(PoolRefusalsOfSeveral, ALossThatWasFilledAloneIsRefusedByName) {
  const auto sequence = pool_sequence(1, 20, false);
  for (const auto& kind : {smooth_ap_kind(), pairwise_kind()}) {
    const auto want = by_list_of_rows(sequence, kind, 20);
    on_ranks(world(), [&](ProcessGroup& group) {
      const auto loss = kind.make(1, {.queue = 20});
      const auto name = kind.name.substr(0, 5);
      call_pool(*loss, nullptr, make_pool_rows(3 + group.rank(), 1, 4));
      const auto expect_refused = [&](const std::vector<Errc>& codes) {
        const auto queued = loss->queued();
        for (const auto& call :
             {std::function<void()>([&] { call_pool(*loss, &group, part_of(sequence, 0, group)); }),
              std::function<void()>([&] { (void)loss->save(group); })})
          expect_error(codes, {name, "rank 0 of 1", "reset_queue()", "load()"}, call);
        EXPECT_EQ(loss->queued(), queued);
      };
      expect_refused({Errc::invalid_argument});
      if (group.rank() != last()) loss->reset_queue();
      expect_refused({group.rank() == last() ? Errc::invalid_argument : Errc::mismatch});
      loss->reset_queue();
      expect_calls(*loss, group, sequence, want, 0, sequence.calls.size());
      // One rank of it cannot continue alone.
      expect_error(Errc::invalid_argument,
                   {name, "rank " + std::to_string(group.rank()) + " of", "rank 0 of 1"},
                   [&] { call_pool(*loss, nullptr, make_pool_rows(3, 1, 4)); });
      expect_error(Errc::invalid_argument, {name, "rank 0 of 1"}, [&] { (void)loss->save(); });
    });
  }
}

TEST_P(PoolRefusals, WhatWasFilledAloneGoesOnWithTheGroupThatLoadsIt) {
  const auto sequence = pool_sequence(1, 20, false);
  for (const auto& kind : {recall_kind(), trapezoid_kind()}) {
    const PoolOptions pool{.queue = 20, .max_rows = 16};
    const auto want = alone(sequence, kind, pool);
    on_ranks(world(), [&](ProcessGroup& group) {
      const auto loss = kind.make(1, pool);
      for (std::size_t i = 0; i < 3; ++i)
        call_pool(*loss, nullptr, sequence.rows(i), false, sequence.calls[i].training);
      loss->load(group, loss->save());
      expect_calls(*loss, group, sequence, want, 3, sequence.calls.size());
    });
  }
}

TEST_P(PoolRefusals, ALoadedLossGoesOnWithAnyNumberOfRanks) {
  for (const bool large : {false, true})
    for (const auto& kind : {recall_kind(), trapezoid_kind()}) {
      if (large && kind.name != "recall_at_quantile") continue;
      SCOPED_TRACE(kind.name);
      const std::int64_t queue = large ? 300 : 20;
      const auto sequence = pool_sequence(large ? 1 : 3, queue, large);
      const PoolOptions pool{.queue = queue, .max_rows = large ? 900 : 16, .seed = 77};
      const auto want = alone(sequence, kind, pool);
      const std::size_t half = 4;
      PerRank<std::string> saved(world().size);
      on_ranks(world(), [&](ProcessGroup& group) {
        const auto loss = kind.make(sequence.classes, pool);
        expect_calls(*loss, group, sequence, want, 0, half);
        saved[group.rank()] = loss->save(group);
        EXPECT_EQ(saved[group.rank()], loss->save(group));
      });
      for (const auto& state : saved.all()) ASSERT_EQ(state, saved[0]);
      for (const int size : {world().size, world().size % 4 + 1}) {
        SCOPED_TRACE("on " + std::to_string(size));
        on_ranks({world().backend, size, world().checked}, [&](ProcessGroup& group) {
          const auto loss = kind.make(sequence.classes, pool);
          loss->load(group, saved[0]);
          EXPECT_EQ(loss->save(group), saved[0]);
          expect_calls(*loss, group, sequence, want, half, sequence.calls.size());
        });
      }
    }
}

TEST_P(PoolRefusals, TheTemperatureIsSaved) {
  on_ranks(world(), [&](ProcessGroup& group) {
    const auto loss = recall_kind().make(1, {});
    EXPECT_EQ(loss->temperature(), 0.2);
    loss->set_temperature(0.375);
    const auto state = loss->save(group);
    const auto other = recall_kind().make(1, {});
    other->load(group, state);
    EXPECT_EQ(other->temperature(), 0.375);
    for (const double bad : {0.0, -1.0, std::nan("")})
      expect_error(Errc::invalid_argument, {"temperature"}, [&] { loss->set_temperature(bad); });
    EXPECT_EQ(loss->temperature(), 0.375);
  });
}

TEST_P(PoolRefusals, WhatIsNoSavedStateIsRefusedAndChangesNothing) {
  const auto sequence = pool_sequence(1, 20, false);
  const auto want = by_list_of_rows(sequence, recall_kind(), 20);
  on_ranks(world(), [&](ProcessGroup& group) {
    const auto loss = recall_kind().make(1, {.queue = 20});
    expect_calls(*loss, group, sequence, want, 0, 3);
    const auto state = loss->save(group);
    auto flipped = state;
    flipped[flipped.size() - 3] ^= 1;
    const auto wider = recall_kind().make(2, {.queue = 20});
    const auto longer = recall_kind().make(1, {.queue = 21});
    for (const auto& bad : {std::string(), std::string("no state"), std::string(500, 'z'),
                            state.substr(0, state.size() - 1), state + 'x', flipped,
                            wider->save(group), longer->save(group)})
      expect_error(Errc::invalid_argument, {"recall_at_quantile"}, [&] { loss->load(group, bad); });
    expect_error(Errc::invalid_argument, {"made by smooth_ap", "this loss is recall_at_quantile"},
                 [&] { loss->load(group, losses::SmoothAp({.pool = {.queue = 20}}).save(group)); });
    EXPECT_EQ(loss->save(group), state);
    expect_calls(*loss, group, sequence, want, 3, sequence.calls.size());
  });
}

// Fails in the first exchange, in a middle one and in the last one.
TEST_P(PoolRefusalsOfSeveral, AGroupThatBreaksInACallEnqueuesNothingOnAnyRank) {
  struct Example {
    RankingKind kind;
    bool large;
    int exchanges;
  };
  // The first message; then anchors, or counts, 4 bytes of the scores and sums.
  for (const auto& e : {Example{smooth_ap_kind(), false, 2}, {recall_kind(), true, 7}}) {
    SCOPED_TRACE(e.kind.name);
    auto sequence = pool_sequence(1, 40, e.large);
    sequence.calls = {sequence.calls.front(), sequence.calls.back()};
    sequence.in_float = true;
    const PoolOptions pool{.queue = 40};
    const auto want = by_list_of_rows(sequence, e.kind, 40);
    std::vector<std::unique_ptr<RankingLoss>> losses;
    for (int r = 0; r < world().size; ++r) losses.push_back(e.kind.make(1, pool));
    on_ranks(world(), [&](ProcessGroup& group) {
      expect_calls(*losses[index(group.rank())], group, sequence, want, 0, 1);
    });
    for (const int failing : std::set{0, e.exchanges / 2, e.exchanges - 1, e.exchanges}) {
      SCOPED_TRACE("exchange " + std::to_string(failing));
      const auto adjust = [&](GroupOptions& options) {
        if (options.rank != last()) return;
        options.decorate = [failing](std::unique_ptr<Backend> inner) -> std::unique_ptr<Backend> {
          return std::make_unique<FaultBackend>(std::move(inner), Faults{.fail_at = failing});
        };
      };
      PerRank<int> finished(world().size);
      const auto call = [&](ProcessGroup& group) {
        auto& loss = *losses[index(group.rank())];
        try {
          expect_calls(loss, group, sequence, want, 1, 2);
          finished[group.rank()] = 1;
        } catch (const Error& error) {
          EXPECT_NE(std::string(error.what()).find("injected fault"), std::string::npos)
              << error.what();
          EXPECT_EQ(loss.queued(), want[0].queued);
        }
      };
      on_fresh_ranks(world(), call, {.adjust = adjust});
      // After the last exchange the call succeeds, as it would have at first.
      for (const int one : finished.all()) EXPECT_EQ(one, failing == e.exchanges ? 1 : 0);
    }
  }
}

}  // namespace
}  // namespace tutti::test
