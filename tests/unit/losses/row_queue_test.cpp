#include "losses/row_queue.hpp"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/errors.hpp"

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

 private:
  std::vector<RowQueue> queues_;
};

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
  expect_error(Errc::invalid_argument, {"2 classes", "this loss has 3"},
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
