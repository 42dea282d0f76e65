#include <algorithm>

#include "conformance/losses/pool_calls.hpp"

// Rows that enter a queue without a call of the loss, and the rows that are read from it.

namespace tutti::test {
namespace {

using losses::Batch;
using losses::PoolOptions;
using losses::QueuedRows;
using losses::RankingLoss;

Batch batch_of(const PoolRows& rows) {
  Batch batch{view(std::span(rows.logits), {rows.count(), rows.classes}), rows.targets, rows.iid};
  if (rows.weights) batch.weight = *rows.weights;
  return batch;
}

void enqueue(RankingLoss& loss, ProcessGroup* group, const PoolRows& rows) {
  group == nullptr ? loss.enqueue(batch_of(rows)) : loss.enqueue(*group, batch_of(rows));
}

void expect_same_rows(const QueuedRows& got, const QueuedRows& want) {
  EXPECT_EQ(got.logits, want.logits);
  EXPECT_EQ(got.targets, want.targets);
  EXPECT_EQ(got.iid, want.iid);
  EXPECT_EQ(got.weights, want.weights);
}

/// The last `queue` rows that are not ignored.
QueuedRows last_rows(const std::vector<PoolRows>& calls, std::size_t queue) {
  QueuedRows rows;
  for (const auto& call : calls)
    for (std::size_t i = 0; i < call.targets.size(); ++i) {
      if (call.targets[i] == losses::default_ignore_index) continue;
      const auto width = static_cast<std::ptrdiff_t>(call.classes);
      const auto from = call.logits.begin() + static_cast<std::ptrdiff_t>(i) * width;
      rows.logits.insert(rows.logits.end(), from, from + width);
      rows.targets.push_back(call.targets[i]);
      rows.iid.push_back(call.iid[i]);
      rows.weights.push_back(call.weights ? call.weights->at(i) : 1);
    }
  if (rows.targets.size() <= queue) return rows;
  const auto first = static_cast<std::ptrdiff_t>(rows.targets.size() - queue);
  const auto width = static_cast<std::ptrdiff_t>(calls[0].classes);
  rows.logits.erase(rows.logits.begin(), rows.logits.begin() + first * width);
  rows.targets.erase(rows.targets.begin(), rows.targets.begin() + first);
  rows.iid.erase(rows.iid.begin(), rows.iid.begin() + first);
  rows.weights.erase(rows.weights.begin(), rows.weights.begin() + first);
  return rows;
}

/// Three calls; the second has weights and is longer than the queue of 30.
std::vector<PoolRows> queued_calls(std::int64_t classes) {
  std::vector<PoolRows> calls;
  for (const std::int64_t count : {12, 50, 14})
    calls.push_back(make_pool_rows(count, classes, static_cast<std::uint64_t>(count)));
  add_weights(calls[1], 3);
  return calls;
}

PoolRows own_rows(const PoolRows& rows, const ProcessGroup& group, std::size_t call) {
  const auto split = pool_split(rows.count(), group.size(), call);
  return rows.part(offset(split, group.rank()), split[index(group.rank())]);
}

class QueueRowsOf : public testing::TestWithParam<World> {};
INSTANTIATE_TEST_SUITE_P(Worlds, QueueRowsOf, testing::ValuesIn(worlds()), CaseName());

TEST_P(QueueRowsOf, RowsAreThoseOfOneProcessForAnySplitAndAsIfTheLossWereCalled) {
  const auto calls = queued_calls(3);
  const auto want = last_rows(calls, 30);
  const auto next = make_pool_rows(20, 3, 77);
  for (const auto& kind : {smooth_ap_kind(), trapezoid_kind()}) {
    const PoolOptions pool{.queue = 30};
    const auto one = kind.make(3, pool);
    for (const auto& rows : calls) call_pool(*one, nullptr, rows);
    const auto outcome = call_pool(*one, nullptr, next, false, false);
    on_ranks(GetParam(), [&](ProcessGroup& group) {
      const auto loss = kind.make(3, pool);
      const auto called = kind.make(3, pool);
      for (std::size_t i = 0; i < calls.size(); ++i) {
        const auto mine = own_rows(calls[i], group, i);
        enqueue(*loss, &group, mine);
        call_pool(*called, &group, mine);
      }
      expect_same_rows(loss->queued_rows(group), want);
      expect_same_rows(called->queued_rows(group), want);
      PoolSequence sequence{.classes = 3, .calls = {}};
      const auto split = pool_split(next.count(), group.size(), 3);
      expect_part(call_pool(*loss, &group, own_rows(next, group, 3), false, false), outcome, group,
                  split, sequence);
    });
  }
}

TEST_P(QueueRowsOf, RowsThatWereReadFillAnotherQueue) {
  const auto calls = queued_calls(1);
  const PoolOptions pool{.queue = 30};
  const auto next = make_pool_rows(20, 1, 77);
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const auto loss = trapezoid_kind().make(1, pool);
    for (std::size_t i = 0; i < calls.size(); ++i)
      enqueue(*loss, &group, own_rows(calls[i], group, i));
    const auto rows = loss->queued_rows(group);
    const auto other = trapezoid_kind().make(1, pool);
    const PoolRows all{1, rows.logits, rows.targets, rows.iid, rows.weights};
    enqueue(*other, &group, own_rows(all, group, 0));
    expect_same_rows(other->queued_rows(group), rows);
    const auto want = call_pool(*loss, &group, own_rows(next, group, 2));
    const auto got = call_pool(*other, &group, own_rows(next, group, 2));
    EXPECT_EQ(got.loss, want.loss);
    EXPECT_EQ(got.grad, want.grad);
  });
}

TEST(QueueRowsAlone, EnqueuedRowsAreNoCallForSamples) {
  const auto calls = queued_calls(1);
  const PoolOptions pool{.queue = 30, .max_rows = 15, .seed = 2};
  const auto loss = smooth_ap_kind().make(1, pool);
  enqueue(*loss, nullptr, calls[1]);
  const auto state = loss->save();
  const auto same = smooth_ap_kind().make(1, pool);
  for (const auto& part : {calls[1].part(0, 20), calls[1].part(20, 30)})
    enqueue(*same, nullptr, part);
  EXPECT_EQ(same->save(), state);
  const auto want = call_pool(*loss, nullptr, calls[0]);
  EXPECT_EQ(call_pool(*same, nullptr, calls[0]).grad, want.grad);
}

TEST_P(QueueRowsOf, AMistakeOfOneRankIsAnErrorOnAllAndKeepsTheQueue) {
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const bool last = group.rank() == group.size() - 1;
    const auto loss = recall_kind().make(1, {.queue = 9});
    auto rows = make_pool_rows(8, 1, 3);
    std::ranges::fill(rows.targets, 1);
    enqueue(*loss, &group, rows);
    const auto want = loss->queued_rows(group);
    const auto code = last ? Errc::invalid_argument : Errc::mismatch;
    auto wrong = rows;
    if (last) wrong.targets[2] = 7;
    expect_error(code, {"recall_at_quantile", "targets[2] is 7"},
                 [&] { enqueue(*loss, &group, wrong); });
    wrong = rows;
    add_weights(wrong, 2);
    if (last) wrong.weights->at(3) = -1;
    expect_error(code, {"recall_at_quantile", "weights[3] is -1"},
                 [&] { enqueue(*loss, &group, wrong); });
    if (group.size() > 1) {
      wrong = rows;
      if (!last) add_weights(wrong, 2);
      expect_error(Errc::mismatch,
                   {"with weights", "rank " + std::to_string(group.size() - 1) + ": "},
                   [&] { enqueue(*loss, &group, wrong); });
      expect_error(Errc::mismatch, {"enqueue"}, [&] {
        last ? enqueue(*loss, &group, rows) : void(call_pool(*loss, &group, rows));
      });
    }
    expect_same_rows(loss->queued_rows(group), want);
  });
}

TEST_P(QueueRowsOf, RowsGatheredByTheCallerAreNotExchanged) {
  const auto rows = make_pool_rows(40, 1, 3);
  on_ranks(GetParam(), [&](ProcessGroup& group) {
    const auto loss = trapezoid_kind().make(1, {.queue = 30, .gather = false});
    group.barrier();
    enqueue(*loss, &group, rows);
    const auto got = loss->queued_rows(group);
    group.barrier();
    const auto trace = group.trace();
    EXPECT_EQ(trace[trace.size() - 2].operation, Operation::barrier);
    expect_same_rows(got, last_rows({rows}, 30));
  });
}

}  // namespace
}  // namespace tutti::test
