#include "losses/row_queue.hpp"

#include <cmath>
#include <deque>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/errors.hpp"
#include "values/bytes.hpp"
#include "values/saved_state.hpp"

namespace tutti::internal::losses {
namespace {

using test::expect_error;
using tutti::losses::PoolOptions;
using Counts = std::vector<std::int64_t>;

/// Row k of the whole test, with two classes.
void add_row(RowQueue::Rows& rows, std::int64_t k) {
  rows.scores.push_back(static_cast<double>(k) + 0.25);
  rows.scores.push_back(-static_cast<double>(k) / 3);
  rows.targets.push_back(k % 5);
  rows.iid.push_back(k % 3 == 0 ? 0 : 1);
  rows.weights.push_back(k % 4 == 1 ? 1 : 0.5 * static_cast<double>(k % 4));
}

/// The queues of all ranks of a group.
class Ranks {
 public:
  Ranks(std::size_t size, const PoolOptions& options) : queues_(size, RowQueue(2, options)) {}
  Ranks(std::size_t size, const PoolOptions& options, const std::string& state)
      : Ranks(size, options) {
    for (std::size_t r = 0; r < size; ++r)
      EXPECT_EQ(queues_[r].load(state, static_cast<int>(r), static_cast<int>(size)), 0.5);
  }

  RowQueue& operator[](std::size_t r) { return queues_[r]; }

  /// Adds counts[r] rows of each rank r, the next ones. A rank passes at most the rows that the
  /// queue keeps.
  void enqueue(const Counts& counts, std::int64_t first) {
    for (std::size_t r = 0; r < queues_.size(); ++r) {
      RowQueue::Rows mine;
      const auto most = std::min(counts[r], queues_[r].options().queue);
      for (auto k = first + counts[r] - most; k < first + counts[r]; ++k) add_row(mine, k);
      queues_[r].reserve(mine.size(), static_cast<int>(queues_.size()));
      queues_[r].count_call();
      queues_[r].enqueue(static_cast<int>(r), counts, mine, true);
      first += counts[r];
    }
  }

  /// All rows in the order of their numbers, as every rank sees them.
  RowQueue::Rows all() const {
    RowQueue::Rows rows;
    std::vector<std::size_t> next(queues_.size());
    for (const auto& segment : queues_[0].segments()) {
      const auto r = static_cast<std::size_t>(segment.rank);
      const auto& own = queues_[r].own();
      for (std::int64_t i = 0; i < segment.count; ++i, ++next[r]) {
        rows.scores.insert(rows.scores.end(),
                           {own.scores.at(2 * next[r]), own.scores.at(2 * next[r] + 1)});
        rows.targets.push_back(own.targets.at(next[r]));
        rows.iid.push_back(own.iid.at(next[r]));
        rows.weights.push_back(own.weights.at(next[r]));
      }
    }
    for (std::size_t r = 0; r < next.size(); ++r) EXPECT_EQ(next[r], queues_[r].own().size());
    return rows;
  }

  /// Checks that the queues hold the rows of this list and agree about each other.
  void expect_rows(const std::deque<std::int64_t>& want) const {
    RowQueue::Rows rows;
    for (const auto k : want) add_row(rows, k);
    const auto got = all();
    EXPECT_EQ(got.scores, rows.scores);
    EXPECT_EQ(got.targets, rows.targets);
    EXPECT_EQ(got.iid, rows.iid);
    EXPECT_EQ(got.weights, rows.weights);
    for (std::size_t r = 0; r < queues_.size(); ++r) {
      EXPECT_EQ(queues_[r].size(), std::ssize(want));
      EXPECT_EQ(queues_[r].size_of(static_cast<int>(r)), std::ssize(queues_[r].own().targets));
      EXPECT_EQ(queues_[r].state(), queues_[0].state());
      EXPECT_EQ(queues_[r].next(), queues_[0].next());
    }
  }

 private:
  std::vector<RowQueue> queues_;
};

class Model {
 public:
  explicit Model(std::int64_t most) : most_(most) {}
  void enqueue(std::int64_t count) {
    for (; count > 0; --count) rows_.push_back(next_++);
    while (std::ssize(rows_) > most_) rows_.pop_front();
  }
  std::int64_t next() const { return next_; }
  const std::deque<std::int64_t>& rows() const { return rows_; }

 private:
  std::int64_t most_;
  std::int64_t next_ = 0;
  std::deque<std::int64_t> rows_;
};

TEST(RowQueue, HoldsTheLastRowsOfAllRanks) {
  std::mt19937 random(1);
  for (const std::int64_t most : {1, 2, 7, 40})
    for (const std::size_t ranks : {1U, 2U, 3U, 5U}) {
      Ranks queues(ranks, {.queue = most});
      Model model(most);
      for (int call = 0; call < 60; ++call) {
        SCOPED_TRACE(call);
        Counts counts;
        // No rows, a few, more than the queue keeps.
        for (std::size_t r = 0; r < ranks; ++r)
          counts.push_back(random() % 3 == 0   ? 0
                           : random() % 7 == 0 ? most + 3
                                               : static_cast<std::int64_t>(random() % 5));
        const auto first = model.next();
        queues.enqueue(counts, first);
        model.enqueue(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
        queues.expect_rows(model.rows());
      }
    }
}

TEST(RowQueue, WithoutPlacesKeepsNothingButTheCountOfCallsThatSample) {
  RowQueue none(2, {});
  none.enqueue(0, Counts{3, 4}, {}, false);
  EXPECT_EQ(none.size(), 0);
  EXPECT_EQ(none.state(), "");
  RowQueue sampling(2, {.max_rows = 9, .seed = 4});
  sampling.count_call();
  sampling.count_call();
  sampling.enqueue(0, Counts{3, 4}, {}, false);
  EXPECT_EQ(sampling.calls(), 2);
  EXPECT_EQ(sampling.next(), 0);
  EXPECT_EQ(sampling.state(), ", max_rows 9 with seed 4 after 2 calls");
}

TEST(RowQueue, SaysWhenItsPastIsAnotherOne) {
  const PoolOptions options{.queue = 9};
  const auto after = [&](const std::vector<Counts>& calls) {
    Ranks ranks(2, options);
    for (const auto& counts : calls) ranks.enqueue(counts, 0);
    return ranks[0].state();
  };
  const auto same = after({{3, 4}});
  EXPECT_EQ(after({{3, 4}, {0, 0}}), same);  // No rows came.
  EXPECT_NE(after({{4, 3}}), same);
  EXPECT_NE(after({{3, 4}, {3, 4}}), same);
  EXPECT_NE(after({}), same);
  // Equally many rows, but of other calls.
  EXPECT_NE(after({{9, 9}, {3, 4}}), after({{3, 4}, {9, 9}}));
}

TEST(RowQueue, IsAsNewWhenItIsReset) {
  Ranks ranks(2, {.queue = 5, .max_rows = 3});
  const auto as_new = ranks[0].state();
  ranks.enqueue({4, 3}, 0);
  ranks[0].reset();
  ranks[1].reset();
  ranks.expect_rows({});
  EXPECT_NE(ranks[0].state(), as_new);  // But the count for samples continues.
  EXPECT_EQ(ranks[0].calls(), 1);
  ranks[0].check_world(1, 4);
  ranks.enqueue({1, 2}, 50);
  ranks.expect_rows({50, 51, 52});
}

TEST(RowQueue, StaysWithTheRankAndTheRanksThatFilledIt) {
  Ranks ranks(2, {.queue = 5});
  ranks[1].check_world(0, 1);  // It is empty.
  ranks.enqueue({4, 3}, 0);
  ranks[1].check_world(1, 2);
  for (const auto& [rank, size] : {std::pair{0, 1}, {0, 2}, {1, 3}})
    expect_error(Errc::invalid_argument, {"by rank 1 of 2", "reset_queue()", "load()"},
                 [&, r = rank, w = size] { ranks[1].check_world(r, w); });
}

TEST(RowQueue, IsTheSameForAnyNumberOfRanksThatLoadIt) {
  const PoolOptions options{.queue = 11, .max_rows = 5};
  for (const std::int64_t rows : {0, 1, 3, 30}) {
    Ranks before(3, options);
    Model model(11);
    before.enqueue({rows, 0, rows / 2}, 0);
    model.enqueue(rows + rows / 2);
    const auto state = before[2].save(before.all(), 0.5);
    for (const std::size_t size : {1U, 2U, 3U, 4U}) {
      Ranks after(size, options, state);
      after.expect_rows(model.rows());
      EXPECT_EQ(after[0].calls(), 1);
      EXPECT_EQ(after[0].next(), before[0].next());
      EXPECT_EQ(after[size - 1].save(after.all(), 0.5), state);
      // Shares are even, and later calls continue from there.
      for (std::size_t r = 0; r < size; ++r)
        EXPECT_LE(
            after[r].size_of(static_cast<int>(r)),
            (std::ssize(model.rows()) + std::ssize(Counts(size)) - 1) / std::ssize(Counts(size)));
      auto goes_on = model;
      after.enqueue(Counts(size, 2), model.next());
      goes_on.enqueue(2 * std::ssize(Counts(size)));
      after.expect_rows(goes_on.rows());
    }
  }
}

// The format before rows had weights; queues in which all weights are 1 still have it.
TEST(RowQueue, LoadsAndSavesStatesWithoutWeights) {
  const std::vector<double> scores{0.5, 1, -2, 3};
  Writer old;
  old.i64(2).i64(6).i64(4).i64(9).f64(0.5).i64(2);  // Classes, queue, calls, next, rows.
  old.numbers(scores).numbers(std::vector<std::int64_t>{1, 0});
  old.numbers(std::vector<std::uint8_t>{1, 0});
  const auto state = seal("TUTTUQ02", old);
  Ranks ranks(2, {.queue = 6}, state);
  const auto rows = ranks.all();
  EXPECT_EQ(rows.scores, scores);
  EXPECT_EQ(rows.weights, (std::vector<double>{1, 1}));
  EXPECT_FALSE(ranks[0].weighted());
  EXPECT_EQ(ranks[0].save(rows, 0.5), state);
}

TEST(RowQueue, IsWeightedWhileItHoldsRowsOfCallsWithWeights) {
  RowQueue queue(2, {.queue = 4});
  const auto enqueue = [&](std::int64_t count, bool weighted) {
    RowQueue::Rows rows;
    for (std::int64_t k = 0; k < count; ++k) add_row(rows, k);
    if (!weighted) std::ranges::fill(rows.weights, 1);
    queue.reserve(rows.size(), 1);
    queue.enqueue(0, Counts{count}, rows, weighted);
  };
  const auto reload = [&] {
    const auto state = queue.save(queue.own(), 0.5);
    queue.load(state, 0, 1);
  };
  enqueue(3, false);
  EXPECT_FALSE(queue.weighted());
  const auto without = queue.state();
  queue.reset();
  enqueue(3, true);
  EXPECT_NE(queue.state(), without);  // Ranks that differ notice.
  EXPECT_TRUE(queue.weighted());
  EXPECT_EQ(queue.own().weights, (std::vector<double>{0, 1, 1}));
  enqueue(2, false);
  EXPECT_TRUE(queue.weighted());
  reload();  // Now it is known that all its rows have weight 1.
  EXPECT_FALSE(queue.weighted());
  enqueue(0, true);
  EXPECT_FALSE(queue.weighted());
  enqueue(4, true);
  reload();
  EXPECT_TRUE(queue.weighted());
  EXPECT_EQ(queue.own().weights, (std::vector<double>{0, 1, 1, 1.5}));
  enqueue(4, false);
  EXPECT_FALSE(queue.weighted());
  enqueue(4, true);
  queue.reset();
  EXPECT_FALSE(queue.weighted());
}

TEST(RowQueue, RefusesAWeightThatIsNone) {
  RowQueue queue(2, {.queue = 6});
  for (const double bad : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    RowQueue::Rows rows;
    add_row(rows, 1);
    rows.weights[0] = bad;
    const auto state = queue.save(rows, 0.5);
    expect_error(Errc::invalid_argument, {"damaged"}, [&] { queue.load(state, 0, 1); });
  }
}

TEST(RowQueue, RefusesWhatIsNoSavedQueueAndStaysAsItWas) {
  const PoolOptions options{.queue = 6};
  Ranks ranks(1, options);
  ranks.enqueue({4}, 0);
  const auto state = ranks[0].save(ranks.all(), 0.5);
  const auto expect_refused = [&](const std::string& bad, const std::vector<std::string>& texts) {
    expect_error(Errc::invalid_argument, texts, [&] { ranks[0].load(bad, 0, 1); });
    EXPECT_EQ(ranks[0].save(ranks.all(), 0.5), state);
  };
  for (std::size_t n = 0; n < state.size(); ++n) expect_refused(state.substr(0, n), {});
  for (std::size_t i = 0; i < state.size(); ++i)
    for (const int bit : {0, 7}) {
      auto bad = state;
      bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
      expect_refused(bad, {});
    }
  expect_refused(state + '\0', {"damaged"});
  expect_refused(state + state, {"damaged"});
  expect_refused("", {"0 bytes"});
  expect_refused(std::string(200, 'x'), {"the given state (200 bytes) is not a saved state"});

  RowQueue other(3, options);
  expect_error(Errc::invalid_argument, {"rows of 2 numbers (classes", "this loss has rows of 3"},
               [&] { other.load(state, 0, 1); });
  RowQueue smaller(2, {.queue = 5});
  expect_error(Errc::invalid_argument, {"a queue of 6 rows", "a queue of 5"},
               [&] { smaller.load(state, 0, 1); });
}

// Numbers that no loss can have, with a valid digest.
TEST(RowQueue, RefusesATemperatureThatIsNone) {
  Ranks ranks(1, {.queue = 6});
  for (const double bad : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    const auto state = ranks[0].save(ranks.all(), bad);
    expect_error(Errc::invalid_argument, {"damaged"}, [&] { ranks[0].load(state, 0, 1); });
  }
}

// Ranks of two groups that trained apart: together they may hold more rows than either has counted.
TEST(RowQueue, MergesRowsOfRanksThatTrainedApart) {
  const PoolOptions options{.queue = 8};
  Ranks a(1, options);
  Ranks b(1, options);
  a.enqueue({4}, 0);
  b.enqueue({4}, 4);
  const std::vector<std::string> parts{a[0].save_own(0.5), b[0].save_own(0.5)};
  Ranks merged(2, options, a[0].merge(parts));
  EXPECT_EQ(merged.all().size(), 8U);
  merged.enqueue({1, 1}, 8);
  EXPECT_EQ(merged.all().size(), 8U);
}

}  // namespace
}  // namespace tutti::internal::losses
