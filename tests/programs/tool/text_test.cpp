#include "common/text.hpp"

#include <chrono>
#include <string>

#include <gtest/gtest.h>

#include "common/duration.hpp"
#include "common/exit_code.hpp"

namespace tutti::tool {
namespace {

using namespace std::chrono_literals;

TEST(Text, BytesShowADecimalUnlessTheyAreAWholeNumberOfTheirUnit) {
  EXPECT_EQ(format_bytes(8), "8 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1 KiB");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes((1 << 20) + 4), "1.0 MiB");
  EXPECT_EQ(format_bytes(std::int64_t{3} << 40), "3 TiB");
  EXPECT_EQ(format_bytes(9223372036854775807), "8192.0 PiB");
}

TEST(Text, MicrosecondsKeepTheDigitsThatMatter) {
  EXPECT_EQ(format_us(0.0412), "0.041");
  EXPECT_EQ(format_us(41.236), "41.24");
  EXPECT_EQ(format_us(44980.04), "44980.0");
}

TEST(Text, RangesJoinNeighbours) {
  EXPECT_EQ(format_ranges({}), "");
  EXPECT_EQ(format_ranges({3}), "3");
  EXPECT_EQ(format_ranges({0, 1, 2, 5, 7, 8}), "0-2,5,7-8");
}

TEST(Text, ClockHasHoursOnlyWhenNeeded) {
  EXPECT_EQ(format_clock(21), "0:21");
  EXPECT_EQ(format_clock(3723), "1:02:03");
}

TEST(Text, DurationsNeedAUnit) {
  EXPECT_EQ(parse_duration("--t", "0.5s"), 500ms);
  EXPECT_EQ(parse_duration("--t", "20ms"), 20ms);
  EXPECT_EQ(parse_duration("--t", "10m"), 10min);
  EXPECT_EQ(parse_duration("--t", "2h"), 2h);
  EXPECT_EQ(parse_duration("--t", "7us"), 7us);
  EXPECT_EQ(parse_duration("--t", "9ns"), 9ns);
  EXPECT_EQ(parse_duration("--t", "99999999999h"), std::chrono::nanoseconds::max());
  for (const char* bad : {"", "10", "s", "-1s", "1e3s", "1s ", "1 s", "nan", "inf", "1d"}) {
    try {
      parse_duration("--t", bad);
      ADD_FAILURE() << "'" << bad << "' was taken";
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.code(), Exit::usage);
      EXPECT_NE(std::string(failure.what()).find(std::string("--t '") + bad + "'"),
                std::string::npos);
    }
  }
}

TEST(Text, AnIntegerOutsideOfItsRangeIsRefusedWithTheRange) {
  EXPECT_EQ(parse_integer("-n", "4096", 1, 4096), 4096);
  for (const char* bad : {"0", "4097", "-1", "", "2x", "x", "1.0", "99999999999999999999"}) {
    try {
      parse_integer("-n", bad, 1, 4096);
      ADD_FAILURE() << "'" << bad << "' was taken";
    } catch (const Failure& failure) {
      const std::string line = failure.what();
      EXPECT_NE(line.find(std::string("'") + bad + "'"), std::string::npos) << line;
      EXPECT_NE(line.find("from 1 to 4096"), std::string::npos) << line;
    }
  }
}

}  // namespace
}  // namespace tutti::tool
