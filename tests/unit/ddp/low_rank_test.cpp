#include "ddp/low_rank.hpp"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace tutti::ddp {
namespace {

template <typename T>
std::vector<T> numbers(std::int64_t count, int salt) {
  std::vector<T> all;
  for (std::int64_t i = 0; i < count; ++i)
    all.push_back(static_cast<T>(std::sin(static_cast<double>(i * i + salt))));
  return all;
}

template <typename T>
class LowRank : public testing::Test {
 protected:
  static constexpr double tolerance = sizeof(T) == 8 ? 1e-12 : 1e-5;
};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(LowRank, Types);

TYPED_TEST(LowRank, ProductsAreThoseOfTheDefinition) {
  using T = TypeParam;
  for (const std::int64_t rows : {1, 3, 17})
    for (const std::int64_t columns : {1, 15, 16, 37})
      for (const int rank : {1, 3}) {
        const auto m = numbers<T>(rows * columns, 1);
        const auto q = numbers<T>(columns * rank, 2);
        std::vector<T> p(static_cast<std::size_t>(rows * rank));
        multiply(m.data(), rows, columns, q.data(), rank, p.data());
        std::vector<T> back(q.size(), T(9));
        multiply_transposed(m.data(), rows, columns, p.data(), rank, back.data());
        const auto at = [](const auto& x, std::int64_t i) {
          return static_cast<double>(x[static_cast<std::size_t>(i)]);
        };
        for (int k = 0; k < rank; ++k) {
          for (std::int64_t i = 0; i < rows; ++i) {
            double sum = 0;
            for (std::int64_t j = 0; j < columns; ++j)
              sum += at(m, i * columns + j) * at(q, k * columns + j);
            EXPECT_NEAR(at(p, k * rows + i), sum, this->tolerance);
          }
          for (std::int64_t j = 0; j < columns; ++j) {
            double sum = 0;
            for (std::int64_t i = 0; i < rows; ++i)
              sum += at(m, i * columns + j) * at(p, k * rows + i);
            EXPECT_NEAR(at(back, k * columns + j), sum, 10 * this->tolerance);
          }
        }
        std::vector<T> row(static_cast<std::size_t>(columns));
        for (std::int64_t i = 0; i < rows; ++i) {
          product_row(p.data(), rows, i, q.data(), columns, rank, row.data());
          for (std::int64_t j = 0; j < columns; ++j) {
            double sum = 0;
            for (int k = 0; k < rank; ++k) sum += at(p, k * rows + i) * at(q, k * columns + j);
            EXPECT_NEAR(at(row, j), sum, 10 * this->tolerance);
          }
        }
      }
}

template <typename T>
double dot(const T* a, const T* b, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

TYPED_TEST(LowRank, ColumnsBecomeOrthonormalAlsoWhenTheyAreNearlyParallel) {
  using T = TypeParam;
  constexpr std::int64_t n = 50;
  constexpr int rank = 4;
  auto columns = numbers<T>(n * rank, 3);
  for (std::int64_t i = 0; i < n; ++i)
    columns[static_cast<std::size_t>(n + i)] =
        columns[static_cast<std::size_t>(i)] + T(1e-3) * columns[static_cast<std::size_t>(n + i)];
  orthogonalize(columns.data(), n, rank, 0);
  for (int a = 0; a < rank; ++a)
    for (int b = 0; b < rank; ++b)
      EXPECT_NEAR(dot(columns.data() + a * n, columns.data() + b * n, n), a == b ? 1 : 0,
                  this->tolerance);
}

TYPED_TEST(LowRank, AColumnThatDependsOnOthersBecomesZeroOrIsFilledAnew) {
  using T = TypeParam;
  constexpr std::int64_t n = 9;
  auto columns = numbers<T>(3 * n, 4);
  for (std::int64_t i = 0; i < n; ++i)
    columns[static_cast<std::size_t>(n + i)] = 3 * columns[static_cast<std::size_t>(i)];
  auto filled = columns;
  orthogonalize(columns.data(), n, 3, 0);
  EXPECT_EQ(dot(columns.data() + n, columns.data() + n, n), 0);
  EXPECT_NEAR(dot(columns.data() + 2 * n, columns.data() + 2 * n, n), 1, this->tolerance);

  int filled_column = -1;
  orthogonalize<T>(filled.data(), n, 3, 0, [&](int k) {
    filled_column = k;
    const auto other = numbers<T>(n, 77);
    std::copy(other.begin(), other.end(), filled.begin() + k * n);
  });
  EXPECT_EQ(filled_column, 1);
  for (int a = 0; a < 3; ++a)
    for (int b = 0; b < 3; ++b)
      EXPECT_NEAR(dot(filled.data() + a * n, filled.data() + b * n, n), a == b ? 1 : 0,
                  this->tolerance);
}

// Rounding errors are not a direction: 12 columns lie in a space of 11 dimensions.
TYPED_TEST(LowRank, MoreColumnsThanDirectionsStayOrthonormalOrZero) {
  using T = TypeParam;
  constexpr std::int64_t n = 12;
  constexpr std::int64_t used = 11;  // The last row is 0.
  for (int salt = 0; salt < 200; ++salt) {
    auto columns = numbers<T>(n * n, salt);
    for (std::int64_t k = 0; k < n; ++k) columns[static_cast<std::size_t>(k * n + used)] = 0;
    orthogonalize(columns.data(), n, n, 0);
    int zeros = 0;
    for (int a = 0; a < n; ++a) {
      const double length = dot(columns.data() + a * n, columns.data() + a * n, n);
      zeros += length == 0 ? 1 : 0;
      for (int b = 0; b < a; ++b)
        ASSERT_NEAR(dot(columns.data() + a * n, columns.data() + b * n, n), 0, this->tolerance);
    }
    ASSERT_EQ(zeros, 1) << salt;
  }
}

TYPED_TEST(LowRank, NanStaysUnlessItIsFilledAnew) {
  using T = TypeParam;
  auto columns = numbers<T>(5, 5);
  columns[2] = std::numeric_limits<T>::quiet_NaN();
  auto filled = columns;
  orthogonalize(columns.data(), 5, 1, 0);
  EXPECT_TRUE(std::isnan(columns[0]));
  orthogonalize<T>(filled.data(), 5, 1, 0, [&](int) { filled = {1, 2, 3, 4, 5}; });
  EXPECT_NEAR(dot(filled.data(), filled.data(), 5), 1, this->tolerance);
}

TYPED_TEST(LowRank, EpsilonMakesColumnsShorter) {
  using T = TypeParam;
  std::vector<T> column{3, 4};
  orthogonalize(column.data(), 2, 1, 5.0);
  EXPECT_NEAR(static_cast<double>(column[0]), 0.3, this->tolerance);
  EXPECT_NEAR(static_cast<double>(column[1]), 0.4, this->tolerance);
}

}  // namespace
}  // namespace tutti::ddp
