#include "output_table.hpp"

#include <vector>

#include <gtest/gtest.h>

namespace tutti::tool {
namespace {

Row row(std::int64_t bytes, GatherAlgo algo, double p50) {
  Row row;
  row.bytes = bytes;
  row.algo = algo;
  row.percentiles_us[50] = p50;
  return row;
}

TEST(OutputTable, TheFastestIsNamedForEachSizeWithWhatNativeTakesLonger) {
  const std::vector<Row> rows{row(1024, GatherAlgo::native, 12), row(1024, GatherAlgo::direct, 10),
                              row(4096, GatherAlgo::native, 10), row(4096, GatherAlgo::direct, 20),
                              row(8192, GatherAlgo::ring, 10)};
  EXPECT_EQ(describe_fastest(rows), "1 KiB direct (native x1.20), 4 KiB native, 8 KiB ring");
}

TEST(OutputTable, AChoiceThatChangesWithTheSizeIsToldWithItsLimits) {
  std::vector<Row> rows{row(8, GatherAlgo::direct, 1), row(1024, GatherAlgo::direct, 1)};
  EXPECT_EQ(describe_choice(rows), "direct");
  rows.push_back(row(2048, GatherAlgo::ring, 1));
  EXPECT_EQ(describe_choice(rows), "direct (up to 1 KiB), ring");
}

TEST(OutputTable, ATitleNamesWhatIsNotUsual) {
  Key key;
  key.coll = "all_gather";
  key.dtype = DType::f32;
  key.place = Place::out;
  key.counts = "even";
  key.algo = GatherAlgo::automatic;
  EXPECT_EQ(title(key), "all_gather  f32  out-of-place");
  key.counts = "zipf:1.5";
  key.algo = GatherAlgo::ring;
  EXPECT_EQ(title(key), "all_gather  f32  out-of-place  counts zipf:1.5  algo ring");
  EXPECT_EQ(title(key.sweep()), "all_gather  f32  out-of-place  counts zipf:1.5");
}

}  // namespace
}  // namespace tutti::tool
