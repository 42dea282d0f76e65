#include <tutti/rows.hpp>

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace tutti {
namespace {

TEST(Rows, DefaultMadeIsNotGiven) {
  const Rows rows;
  EXPECT_FALSE(rows.given());
  EXPECT_FALSE(rows.listed());
}

TEST(Rows, ANumberIsThatOfEveryRank) {
  const Rows rows = 3;
  EXPECT_TRUE(rows.given());
  EXPECT_FALSE(rows.listed());
  for (int r = 0; r < 5; ++r) {
    EXPECT_EQ(rows[r], 3);
    EXPECT_EQ(rows.offset(r), 3 * r);
  }
}

TEST(Rows, ZeroIsANumberLikeOthers) {
  const Rows rows = 0;
  EXPECT_TRUE(rows.given());
  EXPECT_EQ(rows[4], 0);
  EXPECT_EQ(rows.offset(4), 0);
}

TEST(Rows, AListHasOneEntryPerRankAndOffsetsAreItsSums) {
  const std::vector<std::int64_t> list{2, 0, 5, 1};
  const Rows rows = list;
  EXPECT_TRUE(rows.given());
  EXPECT_TRUE(rows.listed());
  EXPECT_EQ(rows.list().data(), list.data()) << "it borrows the list";
  const std::vector<std::int64_t> offsets{0, 2, 2, 7, 8};
  for (int r = 0; r < 5; ++r) EXPECT_EQ(rows.offset(r), offsets[static_cast<std::size_t>(r)]);
  for (int r = 0; r < 4; ++r) EXPECT_EQ(rows[r], list[static_cast<std::size_t>(r)]);
}

TEST(Rows, AnEmptyListIsAListAndNotNothing) {
  const std::vector<std::int64_t> none;
  EXPECT_TRUE(Rows(none).listed());
  EXPECT_TRUE(Rows(none).given());
  EXPECT_EQ(Rows(none).offset(0), 0);
}

TEST(Rows, OffsetsAreCountedIn64Bits) {
  constexpr std::int64_t large = std::int64_t{1} << 33;
  const std::vector<std::int64_t> list{large, large, 1};
  EXPECT_EQ(Rows(list).offset(3), 2 * large + 1);
  EXPECT_EQ(Rows(large).offset(3), 3 * large);
}

std::int64_t total_of(const Rows& rows, int size) {
  return rows.offset(size);
}

TEST(Rows, ABracedListLivesForTheCall) {
  EXPECT_EQ(total_of({1, 2, 3}, 3), 6);
}

}  // namespace
}  // namespace tutti
