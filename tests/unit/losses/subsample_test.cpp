#include "losses/subsample.hpp"

#include <algorithm>
#include <barrier>
#include <cmath>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "values/philox.hpp"

namespace tutti::internal::losses {
namespace {

/// Rows of a pool: row i is of class kinds[i].
struct Pool {
  std::vector<std::uint32_t> kinds;
  std::vector<std::int64_t> totals;
  std::int64_t first_number = 0;

  std::size_t rows() const { return kinds.size(); }
};

/// counts[k] rows of class k, interleaved.
Pool make_pool(const std::vector<std::int64_t>& counts) {
  Pool pool{{}, counts, 0};
  auto left = counts;
  while (std::ranges::any_of(left, [](auto n) { return n > 0; }))
    for (std::size_t k = 0; k < left.size(); ++k)
      if (left[k]-- > 0) pool.kinds.push_back(static_cast<std::uint32_t>(k));
  return pool;
}

using Chosen = std::vector<std::uint8_t>;

Chosen draw_part(const Pool& pool, std::size_t first, std::size_t count, std::int64_t size,
                 std::uint64_t seed, std::int64_t call, const AddUp& add_up) {
  std::vector<std::int64_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), pool.first_number + static_cast<std::int64_t>(first));
  return subsample({numbers, std::span(pool.kinds).subspan(first, count), pool.totals}, size, seed,
                   call, add_up);
}

Chosen draw(const Pool& pool, std::int64_t size, std::uint64_t seed, std::int64_t call) {
  return draw_part(pool, 0, pool.rows(), size, seed, call, [](auto) {});
}

std::vector<std::int64_t> drawn_of_each(const Pool& pool, const Chosen& chosen) {
  std::vector<std::int64_t> counts(pool.totals.size());
  for (std::size_t i = 0; i < chosen.size(); ++i) counts[pool.kinds[i]] += chosen[i];
  return counts;
}

std::int64_t size_of(const Chosen& chosen) {
  return std::accumulate(chosen.begin(), chosen.end(), std::int64_t{0});
}

// A correct generator passes each of these with a probability of 1 - 1e-6; seeds are fixed.
constexpr double normal_bound = 4.9;  ///< Bound on the absolute value of a standard normal number.
/// Wilson, Hilferty: "The distribution of chi-square", PNAS 1931.
double chi_square_bound(double degrees) {
  const double v = 2 / (9 * degrees);
  return degrees * std::pow(1 - v + 4.76 * std::sqrt(v), 3);
}

// The vectors of the authors' library Random123, file kat_vectors.
TEST(Philox, GivesThePublishedAnswers) {
  using Words = std::array<std::uint32_t, 4>;
  constexpr std::uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({ones, ones, ones, ones}, {ones, ones}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Subsample, HasTheSizeAndTheQuotaOfEveryClass) {
  struct Example {
    std::vector<std::int64_t> counts;
    std::int64_t size;
  };
  // Rare classes, absent ones, a single class, odd quotas.
  for (const Example& e :
       {Example{{100, 3}, 20}, {{100, 0, 7, 2}, 31}, {{50}, 49}, {{0, 60, 0}, 1}, {{9, 9, 9}, 26}})
    for (std::int64_t call = 0; call < 50; ++call) {
      const Pool pool = make_pool(e.counts);
      const auto chosen = draw(pool, e.size, 7, call);
      ASSERT_EQ(size_of(chosen), e.size);
      const auto observed = std::ranges::count_if(e.counts, [](auto n) { return n > 0; });
      const auto quota = std::max<std::int64_t>(1, e.size / (2 * observed));
      const auto drawn = drawn_of_each(pool, chosen);
      for (std::size_t k = 0; k < drawn.size(); ++k)
        EXPECT_GE(drawn[k], std::min(e.counts[k], quota)) << "class " << k;
    }
}

TEST(Subsample, TakesOneRowOfSomeClassesWhenThereAreMoreClassesThanPlaces) {
  const Pool pool = make_pool(std::vector<std::int64_t>(10, 4));
  constexpr std::int64_t calls = 3000;
  constexpr std::int64_t size = 3;
  std::vector<std::int64_t> seen(10);
  for (std::int64_t call = 0; call < calls; ++call) {
    const auto chosen = draw(pool, size, 1, call);
    ASSERT_EQ(size_of(chosen), size);
    const auto drawn = drawn_of_each(pool, chosen);
    for (std::size_t k = 0; k < drawn.size(); ++k) {
      ASSERT_LE(drawn[k], 1);
      seen[k] += drawn[k];
    }
  }
  // Equal classes: the counts of draws without replacement.
  const double mean = calls * 0.3;
  double sum = 0;
  for (const auto n : seen) sum += std::pow(static_cast<double>(n) - mean, 2);
  EXPECT_LT(sum * 0.9 / (calls * 0.3 * 0.7), chi_square_bound(9));
}

// Within a class all rows are equally likely. With m of n in a call, the indicators have the
// variance v = m/n (1 - m/n) and the covariance -v / (n - 1).
TEST(Subsample, DrawsEveryRowOfAClassAsOften) {
  const Pool pool = make_pool({30, 12});
  constexpr std::int64_t calls = 3000;
  constexpr std::int64_t size = 14;
  std::vector<double> seen(pool.rows());
  std::vector<double> variance(2);
  double of_first = 0;
  for (std::int64_t call = 0; call < calls; ++call) {
    const auto chosen = draw(pool, size, 99, call);
    for (std::size_t i = 0; i < seen.size(); ++i) seen[i] += chosen[i];
    const auto drawn = drawn_of_each(pool, chosen);
    for (std::size_t k = 0; k < 2; ++k) {
      const double p = static_cast<double>(drawn[k]) / static_cast<double>(pool.totals[k]);
      variance[k] += p * (1 - p);
    }
    of_first += static_cast<double>(drawn[0]);
  }
  for (std::uint32_t k = 0; k < 2; ++k) {
    const auto n = static_cast<double>(pool.totals[k]);
    double mean = 0;
    for (std::size_t i = 0; i < seen.size(); ++i) mean += pool.kinds[i] == k ? seen[i] / n : 0;
    double sum = 0;
    for (std::size_t i = 0; i < seen.size(); ++i)
      if (pool.kinds[i] == k) sum += std::pow(seen[i] - mean, 2);
    EXPECT_LT(sum * (n - 1) / (n * variance[k]), chi_square_bound(n - 1)) << "class " << k;
  }
  // 3 of each class, then 8 of the 27 + 9 others: hypergeometric.
  const double rest = 8;
  const double share = 27.0 / 36;
  const double each = rest * share * (1 - share) * (36 - rest) / 35;
  EXPECT_LT(std::abs(of_first - calls * (3 + rest * share)),
            normal_bound * std::sqrt(calls * each));
}

// Two samples share as many rows as independent ones.
TEST(Subsample, CallsAndSeedsAreIndependent) {
  const Pool pool = make_pool({40});
  constexpr std::int64_t pairs = 1500;
  constexpr double mean = 2.5;                             // 10 of 40, twice.
  constexpr double variance = 10 * 0.25 * 0.75 * 30 / 39;  // Hypergeometric.
  const auto expect = [&](const char* what, const auto& first, const auto& second) {
    double common = 0;
    for (std::int64_t i = 0; i < pairs; ++i) {
      const auto a = first(i);
      const auto b = second(i);
      for (std::size_t row = 0; row < a.size(); ++row) common += a[row] * b[row];
    }
    EXPECT_LT(std::abs(common - pairs * mean), normal_bound * std::sqrt(pairs * variance)) << what;
  };
  const auto base = [&](std::int64_t i) { return draw(pool, 10, 5, i); };
  const auto seed_of = [](std::int64_t i) { return static_cast<std::uint64_t>(i); };
  expect("next call", base, [&](std::int64_t i) { return draw(pool, 10, 5, i + 1); });
  expect("next seed", base, [&](std::int64_t i) { return draw(pool, 10, 6, i); });
  expect("seeds and calls", base, [&](std::int64_t i) { return draw(pool, 10, seed_of(i), 5); });
  expect("high half of the seed", base,
         [&](std::int64_t i) { return draw(pool, 10, 5 + (std::uint64_t{1} << 63), i); });
  expect("high half of the call", base,
         [&](std::int64_t i) { return draw(pool, 10, 5, i + (std::int64_t{1} << 40)); });
  Pool later = pool;
  later.first_number = std::int64_t{1} << 40;
  expect("high half of the rows' numbers", base,
         [&](std::int64_t i) { return draw(later, 10, 5, i); });
}

// Each rank knows its own rows and the totals.
TEST(Subsample, DoesNotDependOnWhichRankHasTheRows) {
  for (const std::int64_t size : {1, 2, 5, 60, 119}) {
    const Pool pool = make_pool({80, 0, 30, 10});
    const auto want = draw(pool, size, 21, 4);
    const std::vector<std::size_t> parts{50, 0, 1, 69};
    Chosen got(pool.rows());
    std::vector<std::int64_t> sum;
    std::mutex mutex;
    std::barrier meet(std::ssize(parts));
    std::vector<std::thread> ranks;
    std::size_t first = 0;
    for (const auto count : parts) {
      ranks.emplace_back([&, first, count] {
        const auto mine =
            draw_part(pool, first, count, size, 21, 4, [&](std::span<std::int64_t> counts) {
              {
                const std::scoped_lock lock(mutex);
                sum.resize(counts.size());
                for (std::size_t i = 0; i < counts.size(); ++i) sum[i] += counts[i];
              }
              meet.arrive_and_wait();
              std::ranges::copy(sum, counts.begin());
              meet.arrive_and_wait();
              {
                const std::scoped_lock lock(mutex);
                sum.clear();
              }
              meet.arrive_and_wait();
            });
        std::ranges::copy(mine, got.begin() + static_cast<std::ptrdiff_t>(first));
      });
      first += count;
    }
    for (auto& rank : ranks) rank.join();
    EXPECT_EQ(got, want) << size;
  }
}

}  // namespace
}  // namespace tutti::internal::losses
