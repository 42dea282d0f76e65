#include "losses/soft_rank.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kernels/kernel_target.hpp"
#include "losses/parallel.hpp"
#include "losses/soft_rank_kernels.hpp"
#include "support/worlds.hpp"

namespace tutti::internal::losses {
namespace {

using Engine = SoftRank::Engine;

struct Pool {
  std::vector<double> scores;
  std::vector<std::uint8_t> positive;
};

/// σ and σ' of x, without cancellation on either side.
double value_of(double x) {
  return x > 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}
double slope_of(double x) {
  const double e = std::exp(-std::abs(x));
  return e / ((1 + e) * (1 + e));
}

/// Computed by the definition, with long double sums.
std::vector<SoftRank::Sums> sums_of(const Pool& pool, const SoftRank& ranks, double temperature) {
  std::vector<SoftRank::Sums> all;
  for (std::size_t k = 0; k < ranks.anchors(); ++k) {
    const auto own = ranks.row(k);
    long double a = 1;
    long double b = 1;
    long double d = 0;
    long double e = 0;
    for (std::size_t j = 0; j < pool.scores.size(); ++j) {
      if (j == own) continue;
      const double x = (pool.scores[j] - pool.scores[own]) / temperature;
      a += value_of(x);
      d += slope_of(x);
      if (pool.positive[j] == 0) continue;
      b += value_of(x);
      e += slope_of(x);
    }
    all.push_back({static_cast<double>(a), static_cast<double>(b), static_cast<double>(d),
                   static_cast<double>(e)});
  }
  return all;
}

Pool normal(std::size_t rows, std::size_t positives, double spread = 1, unsigned seed = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> scores(0, spread);
  Pool pool;
  for (std::size_t i = 0; i < rows; ++i) {
    pool.scores.push_back(scores(random));
    pool.positive.push_back(i < positives ? 1 : 0);
  }
  std::shuffle(pool.positive.begin(), pool.positive.end(), random);
  return pool;
}

/// Two clusters of equal scores, `distance` temperatures apart; every third row is positive.
Pool clusters(std::size_t rows, double distance, double temperature) {
  Pool pool;
  for (std::size_t i = 0; i < rows; ++i) {
    pool.scores.push_back(i % 2 == 0 ? 0.25 : 0.25 + distance * temperature);
    pool.positive.push_back(i % 3 == 0 ? 1 : 0);
  }
  return pool;
}

/// Computed by the definition for all rows, with the a and b of a Smooth-AP.
struct Gradient {
  std::vector<double> a, b;
  std::vector<SoftRank::Slopes> slopes;
};
Gradient gradient_of(const Pool& pool, const SoftRank& ranks, double temperature,
                     const std::vector<SoftRank::Sums>& sums) {
  Gradient result;
  for (const auto& s : sums) {
    result.a.push_back(s.b / (s.a * s.a));
    result.b.push_back(1 / s.a);
  }
  result.slopes.resize(pool.scores.size());
  for (std::size_t k = 0; k < sums.size(); ++k) {
    const auto own = ranks.row(k);
    for (std::size_t i = 0; i < pool.scores.size(); ++i) {
      if (i == own) continue;
      const double slope = slope_of((pool.scores[i] - pool.scores[own]) / temperature);
      result.slopes[i].a += result.a[k] * slope;
      if (pool.positive[i] != 0) result.slopes[i].b += result.b[k] * slope;
    }
  }
  return result;
}

/// Compares all engines with the definition. Ranks relative to themselves; slopes and gradients
/// relative to the largest of the pool, because a negligible slope may be as small as e^-46.
void expect_exact(const Pool& pool, double temperature, double tolerance = 1e-10) {
  std::vector<std::uint32_t> rows(pool.scores.size());
  std::iota(rows.begin(), rows.end(), 0U);
  std::vector<SoftRank::Sums> want;
  Gradient gradient;
  for (const auto engine : {Engine::pairs, Engine::windows, Engine::cells, Engine::automatic}) {
    const SoftRank ranks(pool.scores, pool.positive, temperature, engine);
    SCOPED_TRACE(fmt::format("{} rows, temperature {}, engine {} as {}", rows.size(), temperature,
                             static_cast<int>(engine), static_cast<int>(ranks.engine())));
    if (engine == Engine::pairs) {  // All engines order the anchors the same way.
      want = sums_of(pool, ranks, temperature);
      gradient = gradient_of(pool, ranks, temperature, want);
    }
    ASSERT_EQ(ranks.anchors(), want.size());
    std::vector<SoftRank::Sums> got(want.size());
    ranks.sums(0, got);
    double largest = 1e-300;
    for (const auto& w : want) largest = std::max(largest, w.d);
    for (std::size_t k = 0; k < want.size(); ++k) {
      ASSERT_NEAR(got[k].a, want[k].a, tolerance * want[k].a) << "anchor " << k;
      ASSERT_NEAR(got[k].b, want[k].b, tolerance * want[k].b) << "anchor " << k;
      ASSERT_NEAR(got[k].d, want[k].d, tolerance * largest + 1e-14) << "anchor " << k;
      ASSERT_NEAR(got[k].e, want[k].e, tolerance * largest + 1e-14) << "anchor " << k;
    }
    std::vector<SoftRank::Slopes> slopes(rows.size());
    ranks.slopes(gradient.a, gradient.b, rows, slopes);
    double largest_slope = 1e-300;
    for (const auto& s : gradient.slopes) largest_slope = std::max({largest_slope, s.a, s.b});
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto& expected = gradient.slopes[i];
      ASSERT_NEAR(slopes[i].a, expected.a, tolerance * largest_slope + 1e-15) << "row " << i;
      ASSERT_NEAR(slopes[i].b, expected.b, tolerance * largest_slope + 1e-15) << "row " << i;
    }
  }
}

TEST(SoftRank, TheEnginesAgreeWithTheDefinitionAtAnyTemperature) {
  for (const double temperature : {1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0}) {
    expect_exact(normal(1000, 300), temperature);
    expect_exact(normal(1000, 10, 100), temperature);
  }
}

TEST(SoftRank, PoolsOfAnySizeAreRight) {
  for (const std::size_t rows : {1U, 2U, 3U, 17U, 100U, 3000U})
    for (const double temperature : {0.001, 0.1, 10.0})
      expect_exact(normal(rows, (rows + 2) / 3), temperature);
  const bool few = test::reduced();
  expect_exact(normal(few ? 2'000 : 10'000, few ? 100 : 400), 0.003);
  for (const double temperature : {1e-4, 0.01, 1.0, 10.0})
    expect_exact(normal(few ? 5'000 : 100'000, few ? 10 : 40), temperature);
}

TEST(SoftRank, TiesAreHalfARank) {
  Pool pool = normal(600, 200);
  for (auto& score : pool.scores) score = std::round(score * 8) / 8;
  for (const double temperature : {1e-4, 0.01, 0.125, 1.0}) expect_exact(pool, temperature);
  const Pool equal{std::vector<double>(500, 0.7), std::vector<std::uint8_t>(500, 1)};
  expect_exact(equal, 0.01);
  SoftRank ranks(equal.scores, equal.positive, 0.01, Engine::cells);
  std::vector<SoftRank::Sums> sums(500);
  ranks.sums(0, sums);
  EXPECT_NEAR(sums[0].a, 1 + 499 * 0.5, 1e-9);
}

TEST(SoftRank, MinusZeroIsATieOfZero) {
  Pool pool;
  for (std::size_t i = 0; i < 300; ++i) {
    pool.scores.push_back(i % 2 == 0 ? -0.0 : 0.0);
    pool.positive.push_back(i % 3 == 0 ? 1 : 0);
  }
  for (const double other : {0.5, 0.1}) {  // One that is a float, and one that is not.
    pool.scores[7] = other;
    const SoftRank ranks(pool.scores, pool.positive, 0.01);
    for (std::size_t k = 0; k < ranks.anchors(); ++k) EXPECT_EQ(ranks.row(k), 3 * k);
    expect_exact(pool, 0.01);
  }
}

// Floats are sorted by fewer bytes than doubles.
TEST(SoftRank, AnchorsAreInTheOrderOfScoresAndThenOfRows) {
  Pool pool = normal(2000, 700);
  pool.scores[0] = 1e300;  // Outside of the range of floats.
  pool.scores[1] = 1e-310;
  for (std::size_t i = 2; i < 600; ++i) pool.scores[i] = std::round(pool.scores[i] * 16) / 16;
  for (const bool floats : {false, true}) {
    if (floats)
      for (auto& score : pool.scores) score = std::clamp<float>(static_cast<float>(score), -9, 9);
    const SoftRank ranks(pool.scores, pool.positive, 0.01);
    std::vector<std::uint32_t> want;
    for (std::uint32_t i = 0; i < pool.scores.size(); ++i)
      if (pool.positive[i] != 0) want.push_back(i);
    std::ranges::stable_sort(want, {}, [&](std::uint32_t row) { return pool.scores[row]; });
    ASSERT_EQ(ranks.anchors(), want.size());
    for (std::size_t k = 0; k < want.size(); ++k) EXPECT_EQ(ranks.row(k), want[k]);
  }
}

// Cells are two temperatures wide and begin at the lowest score; the fourth cell is the first far
// one; the reach is the logarithm of the rows over 1e-14.
TEST(SoftRank, ClustersAtTheEdgeOfACellOrAWindowAreRight) {
  const std::size_t rows = test::reduced() ? 90 : 900;
  const double reach = std::log(static_cast<double>(rows) / 1e-14);
  for (const double temperature : {0.01, 0.3})
    for (const double distance :
         {1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 32.0, reach, reach + 6, 64.0, 68.0})
      for (const double off : {0.999, 1.0, 1.001})
        expect_exact(clusters(rows, distance * off, temperature), temperature);
}

// The sums of the far cells are carried from cell to cell, also across empty ones.
TEST(SoftRank, CellsWithEmptyOnesBetweenThemAreRight) {
  for (const double step : {0.7, 2.0, 6.0, 7.9, 8.1, 14.0, 31.0}) {
    Pool pool;
    for (std::size_t i = 0; i < 400; ++i) {
      pool.scores.push_back(0.05 * step * static_cast<double>(i % 40));
      pool.positive.push_back(i % 7 == 0 ? 1 : 0);
    }
    expect_exact(pool, 0.05);
  }
}

TEST(SoftRank, DenormalAndHugeScoresAreRight) {
  Pool pool = normal(800, 200);
  for (std::size_t i = 0; i < 100; ++i)
    pool.scores[i] = static_cast<double>(i) * std::numeric_limits<double>::denorm_min();
  for (std::size_t i = 100; i < 200; ++i)
    pool.scores[i] =
        -static_cast<double>(static_cast<float>(i) * std::numeric_limits<float>::denorm_min());
  expect_exact(pool, 0.01);
  pool.scores[200] = 1e300;
  pool.scores[201] = -1e300;
  pool.scores[202] = 1e9;
  expect_exact(pool, 0.01);
  pool.scores.resize(200);
  pool.positive.resize(200);
  pool.positive[3] = pool.positive[150] = 1;
  expect_exact(pool, 0.01);
}

// Masked rows have -1e9, and must not reduce the precision of the others.
TEST(SoftRank, OutliersAtAnyDistanceChangeNothing) {
  for (const double outlier : {-65504.0, -1e9, -1e12, -7e13, 1e14, -1e30}) {
    Pool pool = normal(2000, 500);
    pool.scores[17] = outlier;
    pool.scores[18] = outlier / 3;
    expect_exact(pool, 0.01);
  }
}

// Scores are doubles with 20 unused bits, so that the shifts are exact.
TEST(SoftRank, ScoresFarFromZeroAreAsGood) {
  for (const double temperature : {1e-4, 0.01})
    for (const double shift : {1024.0, 0x1p20, 0x1p30}) {
      Pool pool = normal(2000, 500);
      for (auto& score : pool.scores) score = std::round(score * 0x1p20) * 0x1p-20 + shift;
      expect_exact(pool, temperature);
    }
}

TEST(SoftRank, NoAnchorsAreNoWork) {
  SoftRank ranks(std::vector<double>(100, 1.0), std::vector<std::uint8_t>(100, 0), 0.1);
  EXPECT_EQ(ranks.anchors(), 0U);
  std::vector<SoftRank::Slopes> out(1);
  const std::vector<std::uint32_t> rows{3};
  ranks.slopes({}, {}, rows, out);
  EXPECT_EQ(out[0].a, 0);
  SoftRank empty({}, {}, 0.1);
  EXPECT_EQ(empty.rows(), 0U);
  empty.sums(0, {});
}

// Each rank of a group computes a part. Results must not depend on the cuts.
TEST(SoftRank, APartHasTheSameBitsAsTheWhole) {
  const Pool pool = normal(5000, 1100);
  for (const auto engine : {Engine::pairs, Engine::windows, Engine::cells}) {
    SoftRank whole(pool.scores, pool.positive, 0.02, engine);
    std::vector<SoftRank::Sums> all(whole.anchors());
    whole.sums(0, all);
    std::vector<double> a;
    std::vector<double> b;
    for (const auto& sums : all) {
      a.push_back(sums.b / (sums.a * sums.a));
      b.push_back(1 / sums.a);
    }
    std::vector<std::uint32_t> rows(5000);
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::uint32_t>(i);
    std::vector<SoftRank::Slopes> slopes(rows.size());
    whole.slopes(a, b, rows, slopes);
    for (const int ranks : {2, 3, 7}) {
      std::size_t next = 0;
      for (int r = 0; r < ranks; ++r) {
        SoftRank part(pool.scores, pool.positive, 0.02, engine);
        const auto [first, last] = part.share(r, ranks);
        EXPECT_EQ(first, next);
        next = last;
        std::vector<SoftRank::Sums> mine(last - first);
        part.sums(first, mine);
        for (std::size_t k = 0; k < mine.size(); ++k) {
          EXPECT_EQ(mine[k].a, all[first + k].a);
          EXPECT_EQ(mine[k].b, all[first + k].b);
          EXPECT_EQ(mine[k].d, all[first + k].d);
          EXPECT_EQ(mine[k].e, all[first + k].e);
        }
        std::vector<std::uint32_t> own;
        for (std::uint32_t i = 0; i < 5000; ++i)
          if (static_cast<int>(i) % ranks == r) own.push_back(i);
        std::vector<SoftRank::Slopes> part_slopes(own.size());
        part.slopes(a, b, own, part_slopes);
        for (std::size_t i = 0; i < own.size(); ++i) {
          EXPECT_EQ(part_slopes[i].a, slopes[own[i]].a);
          EXPECT_EQ(part_slopes[i].b, slopes[own[i]].b);
        }
      }
      EXPECT_EQ(next, whole.anchors());
    }
  }
}

/// Sums and slopes of all anchors and rows, in two sweeps with this number of threads.
struct Everything {
  std::vector<SoftRank::Sums> sums;
  std::vector<SoftRank::Slopes> slopes;
};
Everything by_threads(const SoftRank& ranks, int threads) {
  Everything all;
  all.sums.resize(ranks.anchors());
  in_parallel(threads, all.sums.size(), [&](std::size_t first, std::size_t last) {
    ranks.sums(first, std::span(all.sums).subspan(first, last - first));
  });
  std::vector<double> a;
  std::vector<double> b;
  for (const auto& sums : all.sums) {
    a.push_back(sums.b / (sums.a * sums.a));
    b.push_back(1 / sums.a);
  }
  std::vector<std::uint32_t> rows(ranks.rows());
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::uint32_t>(i);
  all.slopes.resize(rows.size());
  in_parallel(threads, rows.size(), [&](std::size_t first, std::size_t last) {
    ranks.slopes(a, b, std::span(rows).subspan(first, last - first),
                 std::span(all.slopes).subspan(first, last - first));
  });
  return all;
}

TEST(SoftRank, ThreadsOnOneObjectGiveTheSameBits) {
  Pool pool = normal(4000, 900);
  for (std::size_t i = 0; i < 500; ++i) pool.scores[i] = std::round(pool.scores[i] * 8) / 8;
  for (const auto engine : {Engine::pairs, Engine::windows, Engine::cells}) {
    const SoftRank one(pool.scores, pool.positive, 0.02, engine);
    const auto want = by_threads(one, 1);
    for (const int threads : {2, 3, 5}) {
      const SoftRank many(pool.scores, pool.positive, 0.02, engine);
      const auto got = by_threads(many, threads);
      for (std::size_t k = 0; k < want.sums.size(); ++k) {
        EXPECT_EQ(got.sums[k].a, want.sums[k].a);
        EXPECT_EQ(got.sums[k].b, want.sums[k].b);
        EXPECT_EQ(got.sums[k].d, want.sums[k].d);
        EXPECT_EQ(got.sums[k].e, want.sums[k].e);
      }
      for (std::size_t i = 0; i < want.slopes.size(); ++i) {
        EXPECT_EQ(got.slopes[i].a, want.slopes[i].a);
        EXPECT_EQ(got.slopes[i].b, want.slopes[i].b);
      }
    }
  }
}

TEST(SoftRank, ManyRowsTakeCellsAndFewTakePairs) {
  const Pool large = normal(20'000, 4000);
  EXPECT_EQ(SoftRank(large.scores, large.positive, 0.1).engine(), Engine::cells);
  EXPECT_EQ(SoftRank(large.scores, large.positive, 1e-6).engine(), Engine::windows);
  const Pool small = normal(100, 30);
  EXPECT_EQ(SoftRank(small.scores, small.positive, 0.1).engine(), Engine::pairs);
}

TEST(SoftRank, VectorKernelsAgreeWithThePlainOnes) {
  const auto& plain = scalar_soft_rank_kernels();
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> places(-1, 1);
  std::vector<double> x(67);
  std::vector<double> w(67);
  for (auto& value : x) value = places(random);
  for (auto& value : w) value = places(random);
  std::vector<double> matrix(terms * terms);
  for (auto& value : matrix) value = places(random);
  for (const auto target : kernel_targets()) {
    SCOPED_TRACE(target);
    choose_kernel_target(target);
    const auto* const kernels = &soft_rank_kernels();
    choose_kernel_target("");
    for (const std::size_t count : {0U, 1U, 2U, 3U, 5U, 8U, 9U, 31U, 64U, 67U}) {
      for (const bool weighted : {false, true}) {
        const double* weights = weighted ? w.data() : nullptr;
        std::vector<double> got(terms, 0.5);
        std::vector<double> want(terms, 0.5);
        kernels->moments(x.data(), weights, count, got.data());
        plain.moments(x.data(), weights, count, want.data());
        for (std::size_t n = 0; n < terms; ++n) EXPECT_NEAR(got[n], want[n], 1e-12);
      }
      for (const std::size_t size : {std::size_t{1}, terms, 2 * terms - 1}) {
        std::vector<double> got(count, -1);
        std::vector<double> want(count, -1);
        kernels->evaluate(x.data(), count, w.data(), size, got.data());
        plain.evaluate(x.data(), count, w.data(), size, want.data());
        for (std::size_t i = 0; i < count; ++i) EXPECT_NEAR(got[i], want[i], 1e-12);
      }
      for (const double scale : {0.1, 1.0, 30.0, 1e4}) {
        double sums[2] = {1, 2};
        double expected[2] = {1, 2};
        kernels->pairs(x.data(), count, 0.25, scale, sums);
        plain.pairs(x.data(), count, 0.25, scale, expected);
        EXPECT_NEAR(sums[0], expected[0], 1e-13 * expected[0]);
        EXPECT_NEAR(sums[1], expected[1], 1e-13 * expected[1]);
        double by[2] = {3, 4};
        double expected_by[2] = {3, 4};
        kernels->slopes(x.data(), w.data(), x.data(), count, 0.25, scale, by);
        plain.slopes(x.data(), w.data(), x.data(), count, 0.25, scale, expected_by);
        for (const std::size_t i : {0U, 1U}) EXPECT_NEAR(by[i], expected_by[i], 1e-13);
        double without[2] = {3, 4};
        kernels->slopes(x.data(), w.data(), nullptr, count, 0.25, scale, without);
        EXPECT_EQ(without[0], by[0]);
        EXPECT_EQ(without[1], 4);
      }
    }
    std::vector<double> got(w.begin(), w.begin() + terms);
    auto want = got;
    kernels->translate(matrix.data(), x.data(), got.data());
    plain.translate(matrix.data(), x.data(), want.data());
    for (std::size_t n = 0; n < terms; ++n) EXPECT_NEAR(got[n], want[n], 1e-14);
  }
}

}  // namespace
}  // namespace tutti::internal::losses
