#include <algorithm>
#include <cmath>

#include <tutti/autograd.hpp>
#include <tutti/losses/recall_at_quantile.hpp>
#include <tutti/losses/smooth_ap.hpp>

#include "conformance/losses/pool_calls.hpp"

// The pool of a ranking loss (rows of this call, rows of earlier calls, and the sample of them) for
// any split of the rows over the ranks.

namespace tutti::test {
namespace {

using losses::ClassStatus;
using losses::PoolOptions;

class PoolOf : public testing::TestWithParam<World> {
 protected:
  const World& world() const { return GetParam(); }

  /// All calls of the sequence on every rank.
  void expect_sequence(const PoolSequence& sequence, const RankingKind& kind,
                       const PoolOptions& pool, std::span<const PoolOutcome> want) const {
    SCOPED_TRACE(kind.name + ", classes " + std::to_string(sequence.classes) + ", queue " +
                 std::to_string(pool.queue) + (sequence.large ? ", large" : ", small"));
    on_ranks(world(), [&](ProcessGroup& group) {
      const auto loss = kind.make(sequence.classes, pool);
      expect_calls(*loss, group, sequence, want, 0, sequence.calls.size());
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, PoolOf, testing::ValuesIn(worlds()), CaseName());

TEST_P(PoolOf, SmallBatchesWithAQueueAreThoseOfOneProcess) {
  struct Queue {
    std::int64_t classes, rows;
    bool in_float = false;
  };
  for (const auto& kind : ranking_kinds())
    for (const auto& queue : {Queue{1, 20}, {3, 1}, {3, 50, true}}) {
      if (queue.rows == 1 && kind.name != "recall_at_quantile") continue;
      auto sequence = pool_sequence(queue.classes, queue.rows, false);
      sequence.in_float = queue.in_float;
      expect_sequence(sequence, kind, {.queue = queue.rows},
                      by_list_of_rows(sequence, kind, queue.rows));
    }
}

// If sums over ranks suffice, rows are not sent.
TEST_P(PoolOf, LargeBatchesWithAQueueAreThoseOfOneProcess) {
  for (const auto& kind : {smooth_ap_kind(), recall_kind(), pairwise_kind()}) {
    const bool several = kind.name == "recall_at_quantile";
    auto sequence = pool_sequence(several ? 3 : 1, 700, true);
    sequence.in_float = several;
    expect_sequence(sequence, kind, {.queue = 700}, by_list_of_rows(sequence, kind, 700));
  }
}

TEST_P(PoolOf, PositivesOfTheCallAloneAreThoseOfOneProcess) {
  for (const bool large : {false, true}) {
    auto sequence = pool_sequence(3, 30, large);
    if (large) sequence.calls.resize(2);
    const PoolOptions pool{.queue = 30};
    expect_sequence(sequence, live_kind(), pool, alone(sequence, live_kind(), pool));
  }
}

// The first message has the rows of all ranks if they are few. Afterwards a loss of sums exchanges
// nothing, and Smooth-AP only the anchors.
TEST_P(PoolOf, FewRowsAreOneExchange) {
  on_ranks(world(), [&](ProcessGroup& group) {
    const bool inlined = group.supports(Operation::all_gather_bounded, DType::u8);
    for (const auto& kind : {smooth_ap_kind(), recall_kind()}) {
      const auto calls_of = [&](std::int64_t rows) {
        const auto loss = kind.make(1, {.queue = 8});
        const auto mine = make_pool_rows(group.rank() == 0 ? rows : 1, 1, 3);
        group.barrier();
        call_pool(*loss, &group, mine);
        group.barrier();
        const auto trace = group.trace();
        auto last = trace.rbegin() + 1;
        while (last->operation != Operation::barrier) ++last;
        return last - trace.rbegin() - 1;
      };
      const bool ranked = kind.name == "smooth_ap";
      const auto large = calls_of(600);
      EXPECT_EQ(calls_of(20), !inlined ? large : ranked ? 2 : 1) << kind.name;
      EXPECT_GE(large, ranked ? 2 : 9) << kind.name;
    }
  });
}

TEST_P(PoolOf, EvaluationSeesTheQueueAndKeepsNothing) {
  for (const bool large : {false, true}) {
    const auto sequence = pool_sequence(1, 40, large);
    const PoolOptions pool{.queue = 40, .max_rows = large ? 300 : 12, .seed = 3};
    on_ranks(world(), [&](ProcessGroup& group) {
      const auto loss = recall_kind().make(1, pool);
      const auto other = recall_kind().make(1, pool);
      const auto part = [&](std::size_t call) {
        const auto split = pool_split(sequence.calls[call].rows, group.size(), 0);
        return sequence.rows(call).part(offset(split, group.rank()), split[index(group.rank())]);
      };
      const auto train = [&](losses::RankingLoss& one) { call_pool(one, &group, part(0)); };
      train(*loss);
      train(*other);
      const auto queued = loss->queued();
      EXPECT_GT(queued, 0);
      // Two equal runs, with equal samples.
      const auto first = call_pool(*loss, &group, part(1), false, false);
      const auto again = call_pool(*loss, &group, part(1), false, false);
      EXPECT_EQ(first.loss, again.loss);
      EXPECT_EQ(first.grad, again.grad);
      EXPECT_EQ(loss->queued(), queued);
      EXPECT_NE(first.loss,
                call_pool(*recall_kind().make(1, {.max_rows = pool.max_rows, .seed = 3}), &group,
                          part(1), false, false)
                    .loss);
      // As if the call had not been made.
      const auto with = call_pool(*loss, &group, part(3));
      const auto without = call_pool(*other, &group, part(3));
      EXPECT_EQ(with.loss, without.loss);
      EXPECT_EQ(with.grad, without.grad);
    });
  }
}

TEST_P(PoolOf, AfterAResetOnlyRowsOfTheCallCount) {
  const auto sequence = pool_sequence(3, 20, false);
  const auto fresh = by_list_of_rows(sequence, recall_kind(), 20);
  on_ranks(world(), [&](ProcessGroup& group) {
    const auto loss = recall_kind().make(3, {.queue = 20});
    for (int i = 0; i < 2; ++i) {
      expect_calls(*loss, group, sequence, fresh, 0, sequence.calls.size());
      loss->reset_queue();
      EXPECT_EQ(loss->queued(), 0);
    }
  });
}

TEST_P(PoolOf, SamplesAreTheSameRowsForAnySplit) {
  const auto expect = [&](const RankingKind& kind, const PoolSequence& sequence,
                          const PoolOptions& pool) {
    expect_sequence(sequence, kind, pool, alone(sequence, kind, pool));
  };
  const auto sequence = pool_sequence(3, 30, false);
  for (const auto& kind : ranking_kinds())
    expect(kind, sequence, {.queue = 30, .max_rows = 11, .seed = 1234567890});
  expect(smooth_ap_kind(), sequence, {.queue = 30, .max_rows = 2});
  for (const auto& kind : {smooth_ap_kind(), recall_kind()})
    expect(kind, pool_sequence(1, 500, true), {.queue = 500, .max_rows = 400, .seed = 5});
}

/// Scores so far apart that every pair is computed and has a slope.
std::vector<bool> drawn(losses::RankingLoss& loss, const PoolRows& rows) {
  const auto got = call_pool(loss, nullptr, rows);
  std::vector<bool> all;
  for (std::int64_t i = 0; i < rows.count(); ++i) {
    const auto* row = &got.grad[static_cast<std::size_t>(i * rows.classes)];
    all.push_back(std::any_of(row, row + rows.classes, [](double g) { return g != 0; }));
  }
  return all;
}

TEST(PoolAlone, ASampleHasAQuotaOfEveryClass) {
  PoolRows rows = make_pool_rows(300, 3, 5);
  for (std::size_t i = 0; i < rows.targets.size(); ++i)
    if (rows.targets[i] >= 0) rows.targets[i] = i % 100 == 7 ? 2 : i % 20 == 3 ? 1 : 0;
  const std::int64_t rare = std::ranges::count(rows.targets, 2);
  ASSERT_GT(rare, 0);
  ASSERT_LT(rare, 5);
  const auto loss = smooth_ap_kind(1.0).make(3, {.max_rows = 30, .seed = 1});
  std::vector<std::vector<bool>> samples;
  for (int call = 0; call < 20; ++call) {
    samples.push_back(drawn(*loss, rows));
    std::vector<std::int64_t> of_class(3);
    for (std::size_t i = 0; i < samples.back().size(); ++i) {
      if (!samples.back()[i]) continue;
      ASSERT_NE(rows.targets[i], losses::default_ignore_index);
      ++of_class[static_cast<std::size_t>(rows.targets[i])];
    }
    EXPECT_EQ(of_class[0] + of_class[1] + of_class[2], 30);
    EXPECT_GE(of_class[0], 5);
    EXPECT_GE(of_class[1], 5);
    EXPECT_EQ(of_class[2], rare);
    EXPECT_EQ(std::ranges::count(samples, samples.back()), 1) << "the same rows again";
  }
  const auto other = smooth_ap_kind(1.0).make(3, {.max_rows = 30, .seed = 2});
  EXPECT_NE(drawn(*other, rows), samples[0]);
  const auto same = smooth_ap_kind(1.0).make(3, {.max_rows = 30, .seed = 1});
  EXPECT_EQ(drawn(*same, rows), samples[0]);
}

TEST(PoolAlone, APoolThatIsNotTooLargeIsNotSampled) {
  const auto rows = make_pool_rows(60, 1, 2);
  const auto counted =
      rows.count() - std::ranges::count(rows.targets, losses::default_ignore_index);
  for (const auto& kind : ranking_kinds()) {
    const auto want = call_pool(*kind.make(1, {}), nullptr, rows);
    const auto got = call_pool(*kind.make(1, {.max_rows = counted}), nullptr, rows);
    EXPECT_EQ(got.loss, want.loss);
    EXPECT_EQ(got.grad, want.grad);
  }
}

// A batch gathered by the caller, and the gradient that the caller sends back.
TEST_P(PoolOf, RowsGatheredByTheCallerGiveTheSame) {
  const auto sequence = pool_sequence(3, 20, false);
  struct Way {
    GradScale grad;
    GradScale scale;
  };
  for (const Way& way :
       {Way{GradScale::sum, GradScale::sum}, Way{GradScale::local_slice, GradScale::mean}}) {
    const losses::SmoothApOptions options{.classes = 3,
                                          .temperature = 0.05,
                                          .grad_scale = way.scale,
                                          .pool = {.queue = 20, .max_rows = 25, .seed = 4}};
    on_ranks(world(), [&](ProcessGroup& group) {
      losses::SmoothAp gathers(options);
      auto by_hand = options;
      by_hand.pool.gather = false;
      losses::SmoothAp gathered(by_hand);
      for (std::size_t i = 0; i < sequence.calls.size(); ++i) {
        SCOPED_TRACE(i);
        const auto split = pool_split(sequence.calls[i].rows, group.size(), i);
        const auto mine =
            sequence.rows(i).part(offset(split, group.rank()), split[index(group.rank())]);
        const auto logits = view(std::span(mine.logits), {mine.count(), 3});
        const bool training = sequence.calls[i].training;
        const auto want = gathers(group, {logits, mine.targets, mine.iid, training});

        const auto all = autograd::all_gather_rows(group, logits, way.grad);
        const auto targets = all_gather_rows(group, mine.targets);
        group.barrier();
        const auto got = gathered(group, {all.value.view(),
                                          targets.data.view(),
                                          {nullptr, DType::boolean, Shape::vector(0)},
                                          training});
        group.barrier();
        // Never gathered: no calls between the barriers.
        const auto trace = group.trace();
        EXPECT_EQ(trace[trace.size() - 2].operation, Operation::barrier);
        const auto grad = all.back(group, std::as_const(got.grad).view()).value;
        EXPECT_NEAR(got.loss, want.loss, 1e-12);
        EXPECT_EQ(gathered.queued(), gathers.queued());
        ASSERT_EQ(grad.shape(), want.grad.shape());
        double largest = 1;
        const auto* a = static_cast<const double*>(grad.data());
        const auto* b = static_cast<const double*>(want.grad.data());
        for (std::int64_t k = 0; k < grad.shape().numel(); ++k)
          largest = std::max(largest, std::abs(b[k]));
        for (std::int64_t k = 0; k < grad.shape().numel(); ++k)
          ASSERT_NEAR(a[k], b[k], 1e-12 * largest * group.size()) << k;
      }
    });
  }
}

// Neither the constructor nor the first call fixes the group.
TEST_P(PoolOf, ALossThatBeganAloneGathersOnceThereIsAGroup) {
  const auto sequence = pool_sequence(1, 0, false);
  for (const auto& kind : {smooth_ap_kind(), trapezoid_kind()}) {
    const PoolOptions pool{.max_rows = 9};
    const auto want = alone(sequence, kind, pool);
    on_ranks(world(), [&](ProcessGroup& group) {
      const auto loss = kind.make(1, pool);
      // Each on its own, with as many calls.
      call_pool(*loss, nullptr, make_pool_rows(5 + group.rank(), 1, 9));
      const auto alone_first = kind.make(1, pool);
      call_pool(*alone_first, nullptr, make_pool_rows(7, 1, 9));
      for (std::size_t i = 0; i < sequence.calls.size(); ++i) {
        const auto split = pool_split(sequence.calls[i].rows, group.size(), i);
        const auto rows = sequence.rows(i);
        const auto mine = rows.part(offset(split, group.rank()), split[index(group.rank())]);
        const bool training = sequence.calls[i].training;
        expect_part(call_pool(*loss, &group, mine, false, training),
                    call_pool(*alone_first, nullptr, rows, false, training), group, split,
                    sequence);
      }
    });
  }
}

TEST(PoolAlone, RowsOfTheQueueCountWhereTheCallHasNone) {
  const auto rows = make_pool_rows(40, 1, 8);
  for (const auto& kind : ranking_kinds()) {
    const auto loss = kind.make(1, {.queue = 40});
    const auto want = call_pool(*loss, nullptr, rows);
    const auto got = call_pool(*loss, nullptr, make_pool_rows(0, 1, 1));
    EXPECT_NEAR(got.loss, want.loss, 1e-12) << kind.name;
    EXPECT_EQ(got.status, want.status);
    EXPECT_TRUE(got.grad.empty());
  }
}

TEST(PoolAlone, ScoresThatAreAllTiedHaveALossWhereItIsDefined) {
  PoolRows rows = make_pool_rows(20, 1, 4);
  std::ranges::fill(rows.logits, 0.25);
  for (const auto& kind : ranking_kinds()) {
    const auto got = call_pool(*kind.make(1, {.queue = 5}), nullptr, rows);
    EXPECT_EQ(got.status[0] == ClassStatus::valid, !kind.name.starts_with("p_auc")) << kind.name;
    EXPECT_TRUE(std::isfinite(got.loss));
    for (const double g : got.grad) EXPECT_TRUE(std::isfinite(g));
  }
}

// A queue of f64 scores continues with f32 ones: as floats, like the rows of the call.
TEST(PoolAlone, QueuedScoresTakeTheTypeOfTheCall) {
  const auto rows = make_pool_rows(30, 1, 6);
  const auto more = make_pool_rows(30, 1, 7);
  PoolRows both = more;
  both.append(rows);
  for (const auto& kind : ranking_kinds()) {
    const auto loss = kind.make(1, {.queue = 30});
    call_pool(*loss, nullptr, rows);
    const auto got = call_pool(*loss, nullptr, more, true);
    EXPECT_NEAR(got.loss, call_pool(*kind.make(1, {}), nullptr, both, true).loss, 1e-12);
  }
}

TEST(PoolAlone, QueuedScoresThatDoNotFitAreRefused) {
  PoolRows rows = make_pool_rows(4, 1, 6);
  rows.targets = {0, 1, 0, 1};
  auto small = rows;
  rows.logits[2] = 1e300;
  for (const auto& kind : ranking_kinds()) {
    const auto loss = kind.make(1, {.queue = 8});
    call_pool(*loss, nullptr, rows);
    expect_error(Errc::invalid_argument, {"1e+300", "f32", "reset_queue()"},
                 [&] { call_pool(*loss, nullptr, small, true); });
    EXPECT_EQ(loss->queued(), 4);
    call_pool(*loss, nullptr, small);
    loss->reset_queue();
    call_pool(*loss, nullptr, small, true);
  }
}

TEST(PoolAlone, TargetsOutsideOfTheClassesAreRefusedOrNegativesOfAll) {
  PoolRows rows = make_pool_rows(30, 3, 6);
  rows.targets[0] = 9;
  rows.targets[1] = -3;
  for (const auto& kind : ranking_kinds()) {
    expect_error(Errc::invalid_argument, {"targets[0] is 9"},
                 [&] { call_pool(*kind.make(3, {}), nullptr, rows); });
    const auto status = call_pool(*kind.make(3, {.other_targets = true}), nullptr, rows).status;
    EXPECT_EQ(status,
              (std::vector{ClassStatus::valid, ClassStatus::valid, ClassStatus::no_positives}));
  }
}

TEST(PoolAlone, PoolsOutOfRangeAreRefused) {
  for (const auto& kind : ranking_kinds()) {
    expect_error(Errc::invalid_argument, {"queue is -1"}, [&] { kind.make(1, {.queue = -1}); });
    expect_error(Errc::invalid_argument, {"queue is"},
                 [&] { kind.make(1, {.queue = std::int64_t{1} << 40}); });
    expect_error(Errc::invalid_argument, {"max_rows is -2"},
                 [&] { kind.make(1, {.max_rows = -2}); });
  }
}

TEST(PoolAlone, AMovedLossTakesItsQueueAlong) {
  losses::RecallAtQuantile loss({.pool = {.queue = 10}});
  call_pool(loss, nullptr, make_pool_rows(8, 1, 1));
  const auto queued = loss.queued();
  EXPECT_GT(queued, 0);
  losses::RecallAtQuantile moved = std::move(loss);
  EXPECT_EQ(moved.queued(), queued);
}

}  // namespace
}  // namespace tutti::test
