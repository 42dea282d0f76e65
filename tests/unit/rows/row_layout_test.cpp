#include <tutti/row_layout.hpp>

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "support/errors.hpp"

namespace tutti {
namespace {

using test::expect_error;
using Counts = std::vector<std::int64_t>;

constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();

TEST(RowLayout, OffsetsAreTheSumsOfWhatComesBefore) {
  const RowLayout layout(Counts{3, 0, 5, 1});
  EXPECT_EQ(layout.ranks(), 4);
  const Counts offsets{0, 3, 3, 8, 9};
  for (int r = 0; r <= 4; ++r) EXPECT_EQ(layout.offset(r), offsets[static_cast<std::size_t>(r)]);
  EXPECT_EQ(layout[0], 3);
  EXPECT_EQ(layout[1], 0);
  EXPECT_EQ(layout[3], 1);
  EXPECT_EQ(layout.total(), 9);
  EXPECT_EQ(layout.max(), 5);
  EXPECT_FALSE(layout.is_equal());
  EXPECT_EQ(Counts(layout.counts().begin(), layout.counts().end()), (Counts{3, 0, 5, 1}));
}

// It is a default argument, so it is made outside of the functions that report a lack of memory.
static_assert(std::is_nothrow_default_constructible_v<RowLayout>);

TEST(RowLayout, OfNoRanksHasNoRows) {
  const RowLayout layout;
  EXPECT_EQ(layout.ranks(), 0);
  EXPECT_EQ(layout.total(), 0);
  EXPECT_EQ(layout.max(), 0);
  EXPECT_EQ(layout.offset(0), 0);
  EXPECT_TRUE(layout.is_equal());
  EXPECT_EQ(layout, RowLayout(Counts{}));
}

TEST(RowLayout, EqualGivesEveryRankAsMany) {
  const RowLayout layout = RowLayout::equal(3, 7);
  EXPECT_EQ(layout, RowLayout(Counts{7, 7, 7}));
  EXPECT_TRUE(layout.is_equal());
  EXPECT_TRUE(RowLayout::equal(4, 0).is_equal());
  EXPECT_EQ(RowLayout::equal(0, 5).total(), 0);
  EXPECT_TRUE(RowLayout(Counts{2}).is_equal()) << "one rank";
  EXPECT_FALSE(RowLayout(Counts{0, 1}).is_equal());
}

TEST(RowLayout, TwoToThe31RowsOnEachRankAreExact) {
  constexpr std::int64_t each = std::int64_t{1} << 31;
  const RowLayout layout = RowLayout::equal(5, each);
  for (int r = 0; r <= 5; ++r) EXPECT_EQ(layout.offset(r), 2147483648 * r);
  EXPECT_EQ(layout.total(), 10737418240);
  EXPECT_TRUE(layout.is_equal());
  const Shape whole = Shape{each, 128}.with_rows(layout.total());
  const TensorView view(nullptr, DType::f64, whole);
  EXPECT_EQ(view.bytes(), std::size_t{10995116277760}) << "10 TiB";
  EXPECT_EQ(static_cast<std::size_t>(layout.offset(3)) * view.row_bytes(),
            std::size_t{6597069766656});
}

TEST(RowLayout, AnOddRowBeyondTwoToThe40IsCounted) {
  constexpr std::int64_t large = (std::int64_t{1} << 40) + 1;
  const RowLayout layout(Counts{large, 0, large, 1});
  EXPECT_EQ(layout.offset(2), 1099511627777);
  EXPECT_EQ(layout.offset(3), 2199023255554);
  EXPECT_EQ(layout.total(), 2199023255555);
  EXPECT_EQ(layout.max(), large);
  EXPECT_EQ(TensorView(nullptr, DType::f32, {layout.total(), 3}).bytes(), 26388279066660U);
}

TEST(RowLayout, AllOf63BitsAreInUse) {
  const RowLayout layout(Counts{most - 1, 1, 0});
  EXPECT_EQ(layout.total(), most);
  EXPECT_EQ(layout.max(), most - 1);
  EXPECT_FALSE(layout.is_equal()) << "ranks times the largest does not fit";
  EXPECT_TRUE(RowLayout(Counts{most}).is_equal());
  // 4 * 2^62 is 0 in 64 bits.
  EXPECT_FALSE(RowLayout(Counts{std::int64_t{1} << 62, 0, 0, 0}).is_equal());
}

TEST(RowLayout, NegativeRowsAreRefusedWithTheirRank) {
  expect_error(Errc::invalid_argument, {"rank 2", "-4"}, [] { RowLayout(Counts{1, 0, -4, 2}); });
  expect_error(Errc::invalid_argument, {"rank 0", "-1"}, [] { (void)RowLayout::equal(2, -1); });
  const std::int64_t least = std::numeric_limits<std::int64_t>::min();
  expect_error(Errc::invalid_argument, {"rank 1", std::to_string(least)}, [&] {
    RowLayout(Counts{most, least});
  });
}

TEST(RowLayout, ATotalOf64BitsIsRefusedWithBothNumbers) {
  expect_error(Errc::count_overflow, {std::to_string(most), "1 of rank 1", "2^63"}, [] {
    RowLayout(Counts{most, 1});
  });
  constexpr std::int64_t half = std::int64_t{1} << 62;
  expect_error(
      Errc::count_overflow,
      {std::to_string(half) + " rows of ranks 0 to 1", std::to_string(half) + " of rank 2"}, [] {
        RowLayout(Counts{half - 1, 1, half});
      });
  expect_error(Errc::count_overflow, {std::to_string(2 * (most / 3 + 1)), "rank 2"},
               [] { (void)RowLayout::equal(3, most / 3 + 1); });
}

TEST(RowLayout, EqualMeansTheSameCounts) {
  EXPECT_EQ(RowLayout(Counts{1, 2}), RowLayout(Counts{1, 2}));
  EXPECT_NE(RowLayout(Counts{1, 2}), RowLayout(Counts{2, 1})) << "the same total";
  EXPECT_NE(RowLayout(Counts{1, 2}), RowLayout(Counts{1, 2, 0}));
  const RowLayout original(Counts{4, 1});
  const RowLayout copy = original;
  EXPECT_EQ(copy, original);
  EXPECT_EQ(copy.offset(2), 5);
}

TEST(RowLayout, OwnsItsCounts) {
  Counts counts{1, 2};
  const RowLayout layout(counts);
  counts[0] = 100;
  EXPECT_EQ(layout[0], 1);
}

// A call borrows the counts: those of a temporary would be destroyed.
static_assert(std::is_convertible_v<const RowLayout&, Rows>);
static_assert(std::is_convertible_v<RowLayout&, Rows>);
static_assert(!std::is_convertible_v<RowLayout, Rows>);

TEST(RowLayout, IsTheRowsOfACall) {
  const RowLayout layout(Counts{2, 0, 4});
  const Rows rows = layout;
  EXPECT_TRUE(rows.listed());
  EXPECT_EQ(rows.list().data(), layout.counts().data()) << "it borrows the list";
  for (int r = 0; r < 3; ++r) EXPECT_EQ(rows[r], layout[r]);
  for (int r = 0; r <= 3; ++r) EXPECT_EQ(rows.offset(r), layout.offset(r));
}

TEST(RowLayout, IsPrintedAsAListOfAtMostEight) {
  EXPECT_EQ(to_string(RowLayout(Counts{3, 0, 5})), "{3, 0, 5}");
  EXPECT_EQ(to_string(RowLayout()), "{}");
  EXPECT_EQ(to_string(RowLayout::equal(8, 1)), "{1, 1, 1, 1, 1, 1, 1, 1}");
  EXPECT_EQ(to_string(RowLayout::equal(9, 1)), "{1, 1, 1, 1, 1, 1, 1, 1, ...}");
}

}  // namespace
}  // namespace tutti
