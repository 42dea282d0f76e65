#include "compare/gates.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/exit_code.hpp"

namespace tutti::tool {
namespace {

SavedRow row_of(const std::string& coll, std::int64_t bytes, double p50, double busbw) {
  SavedRow row;
  row.coll = coll;
  row.dtype = "f32";
  row.op = "sum";
  row.place = "out";
  row.layout = "even";
  row.bytes = bytes;
  row.ranks = 2;
  row.time_us = {100, p50, p50 + 1, p50 - 1, p50 + 9, 2};
  row.percentiles_us = {{50, p50}, {90, p50 + 2}, {99, p50 + 3}};
  row.busbw = busbw;
  row.algbw = 2 * busbw;
  row.wrong = 0;
  return row;
}

/// all_reduce of 1 KiB, 8 KiB and 64 MiB, broadcast of 1 KiB, and barrier.
std::vector<SavedRun> a_run() {
  SavedRun run;
  run.backend.name = "gloo";
  run.rows = {row_of("all_reduce", 1 << 10, 10, 0.1), row_of("all_reduce", 8 << 10, 20, 0.4),
              row_of("all_reduce", 64 << 20, 9000, 7), row_of("broadcast", 1 << 10, 5, 0.2)};
  SavedRow barrier;
  barrier.coll = "barrier";
  barrier.time_us = {100, 3, 3, 3, 3, 0};
  barrier.percentiles_us = {{50, 3}, {90, 3}, {99, 3}};
  run.rows.push_back(barrier);
  return {run};
}

TEST(Gates, ARuleHoldsForAllRowsThatItSelects) {
  struct Case {
    std::string rule;
    bool pass;
    std::string found;
  };
  const std::vector<Case> cases{
      {"all_reduce f32 >=64M : busbw >= 7", true,
       "1 row, worst 7 GB/s: all_reduce f32 sum 64 MiB, 2 ranks"},
      {"all_reduce f32 >=64M : busbw > 7GB/s", false,
       "1 of 1 row, worst 7 GB/s: all_reduce f32 sum 64 MiB, 2 ranks"},
      {"all_reduce <=8K : p99 <= 23us", true,
       "2 rows, worst 23 µs: all_reduce f32 sum 8 KiB, 2 ranks"},
      {"all_reduce <=8K\t:\tp99 <= 23 µs ", true,
       "2 rows, worst 23 µs: all_reduce f32 sum 8 KiB, 2 ranks"},
      {"all_reduce <=8K:p99<=22.9", false,
       "1 of 2 rows, worst 23 µs: all_reduce f32 sum 8 KiB, 2 ranks"},
      {"all_reduce : busbw >= 0.2 GB/s", false,
       "1 of 3 rows, worst 0.1 GB/s: all_reduce f32 sum 1 KiB, 2 ranks"},
      {"* : wrong == 0", true, "4 rows, worst 0: all_reduce f32 sum 1 KiB, 2 ranks"},
      {"* : p50 < 9ms", false, "1 of 5 rows, worst 9000 µs: all_reduce f32 sum 64 MiB, 2 ranks"},
      {"* : max <= 9.1ms", true, "5 rows, worst 9009 µs: all_reduce f32 sum 64 MiB, 2 ranks"},
      {"barrier : mean <= 3", true, "1 row, worst 3 µs: barrier -, 2 ranks"},
      {"gloo broadcast sum out even 1K : n == 100", true,
       "1 row, worst 100: broadcast f32 sum 1 KiB, 2 ranks"},
      {">1K <64M : min >= 19", true, "1 row, worst 19 µs: all_reduce f32 sum 8 KiB, 2 ranks"},
      {"* : p99.9 < 1s", false, "5 of 5 rows, worst no p99.9: all_reduce f32 sum 1 KiB, 2 ranks"}};
  std::vector<SavedRun> runs = a_run();
  runs[0].rows[4].ranks = 2;
  for (const Case& each : cases) {
    const Gate gate = check_rule(each.rule, runs);
    EXPECT_EQ(gate.pass, each.pass) << each.rule;
    EXPECT_EQ(gate.found, each.found) << each.rule;
    EXPECT_EQ(gate.rule, each.rule);
  }
}

TEST(Gates, ARuleThatSelectsNothingFails) {
  for (const char* rule :
       {"all_gather : busbw > 0", "all_reduce f64 : wrong == 0", "2K : p50 < 1s",
        "barrier : wrong == 0", "all_reduce broadcast : p50 < 1s", "shm : p50 < 1s"}) {
    const Gate gate = check_rule(rule, a_run());
    EXPECT_FALSE(gate.pass) << rule;
    EXPECT_EQ(gate.found, "no row matches") << rule;
  }
}

TEST(Gates, ARowWithoutTheMetricFailsAndIsTheWorst) {
  std::vector<SavedRun> runs = a_run();
  runs[0].rows[1].wrong.reset();
  const Gate gate = check_rule("* : wrong == 0", runs);
  EXPECT_FALSE(gate.pass);
  EXPECT_EQ(gate.found, "1 of 4 rows, worst no wrong: all_reduce f32 sum 8 KiB, 2 ranks");
}

TEST(Gates, ARuleThatCannotBeReadIsRefused) {
  for (const char* rule :
       {"", "all_reduce", "all_reduce busbw >= 1", ": busbw >= 1", "* : busbw",
        "* : busbw >=", "* : >= 1", "* : speed > 1", "* : p0 > 1", "* : p101 > 1", "* : px > 1",
        "* : busbw => 1", "* : busbw >= fast", "* : p50 <= 3 parsecs", "8:1K : p50 < 1",
        "4x : p50 < 1", ">= 64M : p50 < 1", "100e : p50 < 1"}) {
    try {
      (void)check_rule(rule, a_run());
      ADD_FAILURE() << rule;
    } catch (const Failure& failure) {
      EXPECT_EQ(failure.code(), Exit::usage) << rule;
    }
  }
}

}  // namespace
}  // namespace tutti::tool
