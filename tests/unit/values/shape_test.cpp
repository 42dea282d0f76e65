#include <tutti/shape.hpp>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/errors.hpp"

namespace tutti {
namespace {

using test::expect_error;

constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t two_to_32 = std::int64_t{1} << 32;

TEST(Shape, WithoutDimensionsIsOneElementAndOneRow) {
  const Shape scalar;
  EXPECT_EQ(scalar.ndim(), 0U);
  EXPECT_EQ(scalar.numel(), 1);
  EXPECT_EQ(scalar.rows(), 1);
  EXPECT_EQ(scalar.row_numel(), 1);
  EXPECT_TRUE(scalar.dims().empty());
  EXPECT_TRUE(scalar.row_dims().empty());
  EXPECT_EQ(to_string(scalar), "[]");
}

TEST(Shape, RowIsEverythingBehindTheFirstDimension) {
  const Shape shape{2, 3, 5};
  EXPECT_EQ(shape.numel(), 30);
  EXPECT_EQ(shape.rows(), 2);
  EXPECT_EQ(shape.row_numel(), 15);
  EXPECT_EQ(std::vector(shape.row_dims().begin(), shape.row_dims().end()),
            (std::vector<std::int64_t>{3, 5}));
  EXPECT_EQ(to_string(shape), "[2, 3, 5]");
}

TEST(Shape, ADimensionOfZeroMakesNoElements) {
  EXPECT_EQ((Shape{0}).numel(), 0);
  EXPECT_EQ((Shape{0, 3}).numel(), 0);
  EXPECT_EQ((Shape{0, 3}).row_numel(), 3);
  EXPECT_EQ((Shape{3, 0}).numel(), 0);
  EXPECT_EQ((Shape{3, 0}).rows(), 3);
  EXPECT_EQ((Shape{3, 0}).row_numel(), 0);
}

TEST(Shape, HoldsEightDimensionsAndRefusesTheNinth) {
  const Shape eight{1, 2, 1, 2, 1, 2, 1, 2};
  EXPECT_EQ(eight.ndim(), 8U);
  EXPECT_EQ(eight.numel(), 16);
  expect_error(Errc::invalid_argument, {"9 dimensions", "8", "[1, 2, 3, 4, 5, 6, 7, 8, 9]"},
               [] { (void)Shape{1, 2, 3, 4, 5, 6, 7, 8, 9}; });
}

TEST(Shape, ANegativeDimensionIsRefusedByPlaceAndValue) {
  expect_error(Errc::invalid_argument, {"dimension 1 is -7", "[2, -7]"}, [] {
    (void)Shape{2, -7};
  });
  expect_error(Errc::invalid_argument, {"dimension 0 is -1"}, [] { (void)Shape{-1}; });
  expect_error(Errc::invalid_argument, {std::to_string(-most - 1)}, [] { (void)Shape{-most - 1}; });
  // Zeros must not hide the overflow.
  expect_error(Errc::invalid_argument, {"-3"}, [] { (void)Shape{0, -3}; });
  expect_error(Errc::invalid_argument, {"-3"}, [] { (void)Shape{-3, 0}; });
}

TEST(Shape, TheLargestCountFits) {
  EXPECT_EQ((Shape{most}).numel(), most);
  EXPECT_EQ((Shape{1, most, 1}).numel(), most);
  EXPECT_EQ((Shape{two_to_32, two_to_32 / 2 - 1}).numel(), two_to_32 * (two_to_32 / 2 - 1));
}

TEST(Shape, AnOverflowingProductShowsBothFactors) {
  expect_error(Errc::count_overflow, {std::to_string(two_to_32), std::to_string(most)}, [] {
    (void)Shape{two_to_32, two_to_32};
  });
  expect_error(Errc::count_overflow, {"3", std::to_string(most / 2)}, [] {
    (void)Shape{3, most / 2};
  });
  expect_error(Errc::count_overflow, {std::to_string(most), "2 "}, [] { (void)Shape{most, 2}; });
}

// [0, a, b] must not become [n, a, b] with more elements than 63 bits can count.
TEST(Shape, AZeroDoesNotHideAnOverflow) {
  expect_error(Errc::count_overflow, {std::to_string(two_to_32)}, [] {
    (void)Shape{0, two_to_32, two_to_32};
  });
  expect_error(Errc::count_overflow, {std::to_string(two_to_32)}, [] {
    (void)Shape{two_to_32, 0, two_to_32};
  });
  EXPECT_EQ((Shape{0, most}).row_numel(), most);
}

TEST(Shape, WithRowsChangesTheFirstDimensionOnly) {
  EXPECT_EQ((Shape{2, 3, 5}).with_rows(7), (Shape{7, 3, 5}));
  EXPECT_EQ((Shape{2, 3, 5}).with_rows(0), (Shape{0, 3, 5}));
  EXPECT_EQ((Shape{0, 3}).with_rows(4).numel(), 12);
  EXPECT_EQ(Shape().with_rows(3), Shape{3});
}

TEST(Shape, WithRowsChecksLikeTheConstructor) {
  expect_error(Errc::count_overflow, {std::to_string(most), "2 "}, [] {
    (void)Shape({0, 2}).with_rows(most);
  });
  expect_error(Errc::invalid_argument, {"-1"}, [] { (void)Shape({2, 2}).with_rows(-1); });
}

TEST(Shape, ComparesDimensionsAndTheirNumber) {
  EXPECT_EQ((Shape{2, 3}), (Shape{2, 3}));
  EXPECT_NE((Shape{2, 3}), (Shape{3, 2}));
  EXPECT_NE((Shape{6}), (Shape{2, 3}));
  EXPECT_NE((Shape{2}), (Shape{2, 1}));
  EXPECT_NE((Shape{0}), (Shape{0, 0}));
  EXPECT_NE(Shape(), Shape{0});
  EXPECT_NE(Shape(), Shape{1});
  EXPECT_NE((Shape{1, 1, 1, 1, 1, 1, 1, 2}), (Shape{1, 1, 1, 1, 1, 1, 1, 3}));
}

TEST(Shape, TakesASpanOfDimensions) {
  const std::vector<std::int64_t> dims{4, 5};
  EXPECT_EQ(Shape(std::span<const std::int64_t>(dims)), (Shape{4, 5}));
  EXPECT_EQ(Shape(std::span<const std::int64_t>()), Shape());
}

}  // namespace
}  // namespace tutti
