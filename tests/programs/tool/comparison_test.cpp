#include "report/comparison.hpp"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/statistics.hpp"

namespace tutti::tool {
namespace {

SavedRow row_of(std::int64_t bytes, double p50) {
  SavedRow row;
  row.coll = "all_reduce";
  row.dtype = "f32";
  row.op = "sum";
  row.place = "out";
  row.bytes = bytes;
  row.ranks = 2;
  row.time_us.p50 = p50;
  row.percentiles_us = {{50, p50}};
  return row;
}

SavedRun run_of(const std::vector<double>& p50s) {
  SavedRun run;
  run.backend.name = "gloo";
  for (std::size_t i = 0; i < p50s.size(); ++i) run.rows.push_back(row_of(1024LL << i, p50s[i]));
  return run;
}

std::vector<SavedRun> runs_of(const std::vector<double>& p50s) {
  std::vector<SavedRun> runs;
  for (const double p50 : p50s) runs.push_back(run_of({p50}));
  return runs;
}

/// A simulated machine that drifts: the speed is a random walk around a slow wave, one run in ten
/// is disturbed, and each run has a speed of its own, as memory and CPUs differ between processes.
class Machine {
 public:
  explicit Machine(std::uint64_t seed) : random_(seed), phase_(uniform_(random_) * 6.28) {}

  /// The p50 of each row in the next run of a program with this slow-down.
  SavedRun run(double slowdown, std::size_t rows) {
    const std::vector<double> units = next(rows);
    std::vector<double> p50s;
    for (const double unit : units) p50s.push_back(unit * slowdown);
    return run_of(p50s);
  }
  /// Samples of one row of one run, a few per mille apart.
  std::vector<double> samples(std::size_t n) {
    const double level = next(1).front();
    std::vector<double> values(n);
    for (double& value : values) value = level * std::exp(0.01 * normal_(random_));
    return values;
  }

 private:
  std::vector<double> next(std::size_t rows) {
    walk_ += 0.02 * normal_(random_);
    phase_ += 0.1;
    const double drift = walk_ + 0.15 * std::sin(phase_);
    const double disturbed = uniform_(random_) < 0.1 ? 0.5 : 0;
    std::vector<double> p50s;
    for (std::size_t i = 0; i < rows; ++i)
      p50s.push_back(100 * std::exp(drift + disturbed + 0.04 * normal_(random_)));
    return p50s;
  }

  Random random_;
  std::normal_distribution<double> normal_{};
  std::uniform_real_distribution<double> uniform_{};
  double walk_ = 0;
  double phase_;
};

Comparison rounds(std::uint64_t seed, double slowdown, int count, std::size_t rows) {
  Machine machine(seed);
  Random random(seed + 1);
  std::vector<SavedRun> old_runs;
  std::vector<SavedRun> new_runs;
  bool old_first = false;
  for (int round = 0; round < count; ++round) {
    old_first = round % 2 == 0 ? random() % 2 == 0 : !old_first;
    if (old_first) old_runs.push_back(machine.run(1, rows));
    new_runs.push_back(machine.run(slowdown, rows));
    if (!old_first) old_runs.push_back(machine.run(1, rows));
  }
  return compare(old_runs, new_runs, 0.05, true);
}

TEST(Comparison, RoundsOnADriftingMachineFindASlowDownAndCallEqualProgramsDifferentInOnePercent) {
  constexpr int sweeps = 50;
  constexpr std::size_t rows = 4;
  int false_sweeps = 0;
  int found = 0;
  int found_faster = 0;
  for (int i = 0; i < sweeps; ++i) {
    const auto seed = static_cast<std::uint64_t>(i);
    const Comparison equal = rounds(3 * seed, 1, 40, rows);
    false_sweeps += equal.count(Change::slower) + equal.count(Change::faster) > 0 ? 1 : 0;
    found += static_cast<int>(rounds(3 * seed + 1, 1.1, 40, rows).count(Change::slower));
    found_faster += static_cast<int>(rounds(3 * seed + 2, 1 / 1.1, 40, rows).count(Change::faster));
  }
  EXPECT_LE(false_sweeps, 1);
  EXPECT_GE(found, sweeps * static_cast<int>(rows) * 96 / 100);  // 48 of 50.
  EXPECT_GE(found_faster, sweeps * static_cast<int>(rows) * 96 / 100);
}

/// The reason for rounds: the samples of two runs differ significantly, whatever is measured.
TEST(Comparison, SamplesOfTwoRunsOnADriftingMachineWouldNearlyAlwaysDiffer) {
  int different = 0;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    Machine machine(seed);
    const std::vector<double> a = machine.samples(200);
    const std::vector<double> b = machine.samples(200);
    different += rank_sum_p(a, b) < 0.01 ? 1 : 0;
  }
  EXPECT_GE(different, 40);
}

TEST(Comparison, AChangeNeedsTheThresholdAndTheIntervalAndP) {
  const std::vector<double> base{100, 100.5, 99.5, 100, 100.2, 99.8, 100, 100.5, 99.5, 100};
  const auto change = [&](double factor, double noise = 0) {
    std::vector<double> other = base;
    std::ranges::reverse(other);
    for (std::size_t i = 0; i < other.size(); ++i)
      other[i] *= factor + (i % 2 == 0 ? noise : -noise);
    return compare(runs_of(base), runs_of(other), 0.05, true).rows.front().change;
  };
  EXPECT_EQ(change(1.00), Change::same);
  EXPECT_EQ(change(1.03), Change::same);  // Significant, but within the threshold.
  EXPECT_EQ(change(1.10), Change::slower);
  EXPECT_EQ(change(0.90), Change::faster);
  EXPECT_EQ(change(1.00, 0.3), Change::noisy);
  EXPECT_EQ(change(1.10, 0.3), Change::noisy);
}

TEST(Comparison, TheRatioIsThatOfMedians) {
  const Comparison lists = compare(runs_of({1, 2, 30}), runs_of({4, 400, 3}), 0.05, false);
  EXPECT_EQ(lists.unit, Unit::run);
  EXPECT_DOUBLE_EQ(lists.rows.front().ratio, 2);
  const Comparison paired = compare(runs_of({1, 2, 30}), runs_of({4, 400, 90}), 0.05, true);
  EXPECT_DOUBLE_EQ(paired.rows.front().ratio, 4);  // Of 4, 200 and 3.
  EXPECT_EQ(paired.unit, Unit::round);
}

TEST(Comparison, FewRunsAreNoisyAndANoteSaysHowManyAreNeeded) {
  const auto three = compare(runs_of({1, 1.01, 0.99}), runs_of({2, 2.01, 1.99}), 0.05, false);
  EXPECT_EQ(three.rows.front().change, Change::noisy);
  ASSERT_EQ(three.notes.size(), 1U);
  EXPECT_NE(three.notes.front().find("from 5 on"), std::string::npos) << three.notes.front();
  const std::vector<double> five{1, 1.01, 0.99, 1.02, 0.98};
  std::vector<double> twice = five;
  for (double& each : twice) each *= 2;
  const auto enough = compare(runs_of(five), runs_of(twice), 0.05, false);
  EXPECT_EQ(enough.rows.front().change, Change::slower);
  EXPECT_TRUE(enough.notes.empty());
}

TEST(Comparison, OneRunEachIsComparedByBlocksAndANoteSaysWhatIsMissing) {
  SavedRun before = run_of({100});
  SavedRun after = run_of({120});
  EXPECT_FALSE(compare({&before, 1}, {&after, 1}, 0.05, false).rows.front().interval);
  for (int i = 0; i < 20; ++i) {
    before.rows.front().block_p50_us.push_back(100 + i % 3);
    after.rows.front().samples_us.push_back(120 + i % 3);  // Saved with --samples all.
  }
  const Comparison blocks = compare({&before, 1}, {&after, 1}, 0.05, false);
  EXPECT_EQ(blocks.unit, Unit::block);
  EXPECT_EQ(blocks.rows.front().change, Change::slower);
  EXPECT_EQ(blocks.rows.front().old_units, 20);
  EXPECT_NE(blocks.notes.front().find("--run"), std::string::npos);
}

TEST(Comparison, RowsMatchByEverythingThatIdentifiesThem) {
  const SavedRow base = row_of(1024, 1);
  std::vector<SavedRow> others(9, base);
  others[0].coll = "reduce";
  others[1].dtype = "f64";
  others[2].op = "max";
  others[3].place = "in";
  others[4].root = 1;
  others[5].layout = "linear";
  others[6].counts = {1, 2};
  others[7].bytes = 2048;
  others[8].ranks = 3;
  SavedRun before = run_of({1});
  for (const SavedRow& other : others) {
    SavedRun after = before;
    after.rows.front() = other;
    const Comparison found = compare({&before, 1}, {&after, 1}, 0.05, false);
    EXPECT_TRUE(found.rows.empty());
    EXPECT_EQ(found.only_old, std::vector<std::string>{"all_reduce f32 sum 1 KiB, 2 ranks"});
    EXPECT_EQ(found.only_new.size(), 1U);
    EXPECT_EQ(exit_of(found, false), Exit::gate);
  }
}

TEST(Comparison, BackendsAreDifferencesUnlessASideHasSeveral) {
  SavedRun gloo = run_of({100});
  SavedRun shm = run_of({10});
  shm.backend.name = "shm";
  const Comparison one = compare({&gloo, 1}, {&shm, 1}, 0.05, false);
  ASSERT_EQ(one.rows.size(), 1U);
  EXPECT_EQ(one.differences, std::vector<std::string>{"backend: gloo -> shm"});
  const std::vector<SavedRun> both{gloo, shm};
  const Comparison several = compare(both, both, 0.05, false);
  ASSERT_EQ(several.rows.size(), 2U);
  EXPECT_EQ(several.rows[0].backend, "gloo");
  EXPECT_EQ(several.rows[1].backend, "shm");
}

TEST(Comparison, DifferencesOfSettingsAreNamed) {
  SavedRun before = run_of({1});
  SavedRun after = before;
  after.env["NCCL_ALGO"] = "Ring";
  after.config["mode"] = before.config["mode"] = "latency";
  before.backend.version = "2.27.3";
  after.backend.version = "2.30.7";
  after.world.oversubscribed = true;
  const Comparison found = compare({&before, 1}, {&after, 1}, 0.05, false);
  EXPECT_EQ(found.differences, (std::vector<std::string>{"NCCL_ALGO: unset -> Ring",
                                                         "backend.version: 2.27.3 -> 2.30.7",
                                                         "oversubscribed: false -> true"}));
}

TEST(Comparison, TheExitCodeIsThatOfTheWorstRow) {
  Comparison comparison;
  EXPECT_EQ(exit_of(comparison, false), Exit::gate);  // Nothing was compared.
  comparison.rows.resize(2);
  comparison.rows[0].change = Change::same;
  EXPECT_EQ(exit_of(comparison, false), Exit::ok);
  EXPECT_EQ(exit_of(comparison, true), Exit::gate);  // The other one is noisy.
  comparison.rows[1].change = Change::faster;
  EXPECT_EQ(exit_of(comparison, true), Exit::ok);
  comparison.only_old = {"a row"};
  EXPECT_EQ(exit_of(comparison, false), Exit::ok);
  EXPECT_EQ(exit_of(comparison, true), Exit::gate);
  comparison.rows[1].change = Change::slower;
  EXPECT_EQ(exit_of(comparison, false), Exit::gate);
  comparison.wrong = {"a row"};
  EXPECT_EQ(exit_of(comparison, false), Exit::wrong_data);
}

}  // namespace
}  // namespace tutti::tool
