#include "bench/bench.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "bench_runs.hpp"
#include "common/message.hpp"

// Whole runs over faulty backends, whose faults must be detected.

namespace tutti::tool {
namespace {

using namespace std::chrono_literals;

/// A backend that lacks operations of another one.
class Lacking final : public ForwardingBackend {
 public:
  Lacking(std::unique_ptr<Backend> inner, std::function<bool(Operation)> lacks)
      : ForwardingBackend(std::move(inner)), lacks_(std::move(lacks)) {}
  bool supports(Operation o, DType d, ReduceOp::Kind k) const noexcept override {
    return !lacks_(o) && ForwardingBackend::supports(o, d, k);
  }

 private:
  std::function<bool(Operation)> lacks_;
};

/// Two ranks, 1 KiB of f32, ten iterations. The all_reduce calls of `bad_rank` go through `change`;
/// the tool's own calls are never all_reduce.
BenchOptions two_ranks(int bad_rank, const Changed::Change& change) {
  BenchOptions options;
  options.ranks = 2;
  options.backend = "local";
  options.format = Format::json;
  options.request.collectives.values = {find_collective("all_reduce")};
  options.request.dtypes.values = {DType::f32};
  options.request.ops.values = {ReduceOp::Kind::sum};
  options.request.places.values = {PlaceMode::out};
  options.request.sizes = parse_sizes("1K");
  options.timing.iters = 10;
  options.timing.warmup = 1;
  return change ? with_change(std::move(options), change, bad_rank) : options;
}

std::string output_of(const BenchOptions& options) {
  Captured out;
  Captured err;
  (void)run_bench(options, out.file(), err.file());
  return out.text();
}

std::byte* out_bytes(std::span<const Op> ops) {
  return static_cast<std::byte*>(ops.front().out.data);
}

TEST(Bench, AHealthyBackendHasNothingWrong) {
  const Result r = run(two_ranks(0, {}));
  EXPECT_EQ(r.code, Exit::ok);
  EXPECT_EQ(r.json.at("status"), "ok");
  EXPECT_EQ(r.row().at("wrong"), 0);
  EXPECT_TRUE(r.row().at("first_wrong").is_null());
  EXPECT_EQ(r.row().at("time_us").at("n"), 10);
  EXPECT_EQ(r.row().at("warmup_calls"), 1);
  EXPECT_EQ(r.err, "");
}

TEST(Bench, OneWrongElementOnOneRankIsCountedAndNamed) {
  const Result r = run(two_ranks(1, [](auto ops, const Call& call, const auto& real) {
    Work work = real(ops, call);
    out_bytes(ops)[5 * 4 + 2] ^= std::byte{1};
    return work;
  }));
  EXPECT_EQ(r.code, Exit::wrong_data);
  EXPECT_EQ(r.json.at("status"), "wrong_data");
  EXPECT_EQ(r.row().at("wrong"), 1);
  const Json& first = r.row().at("first_wrong");
  EXPECT_EQ(first.at("rank"), 1);
  EXPECT_EQ(first.at("index"), 5);
  EXPECT_EQ(first.at("array"), "out");
  EXPECT_NE(first.at("expected"), first.at("got"));
  EXPECT_TRUE(contains(r.err, "1 wrong element, first: rank 1 out[5] expected ")) << r.err;
}

TEST(Bench, WrongDataHasTheColumnsOfAHealthyRow) {
  BenchOptions options = two_ranks(1, [](auto ops, const Call& call, const auto& real) {
    Work work = real(ops, call);
    out_bytes(ops)[0] ^= std::byte{1};
    return work;
  });
  options.format = Format::csv;
  const std::string wrong = output_of(options);
  options.decorate = {};
  const std::string right = output_of(options);
  EXPECT_EQ(wrong.substr(0, wrong.find('\n')), right.substr(0, right.find('\n')));
  EXPECT_TRUE(contains(wrong, ",1,1,out,0,")) << wrong;  // wrong, and where the first is.
  EXPECT_TRUE(contains(right, ",0,,,,,,")) << right;
}

TEST(Bench, CheckAllCountsEveryCall) {
  BenchOptions options = two_ranks(1, [](auto ops, const Call& call, const auto& real) {
    Work work = real(ops, call);
    out_bytes(ops)[0] ^= std::byte{1};
    return work;
  });
  options.timing.check = Check::all;
  const Result r = run(options);
  EXPECT_EQ(r.code, Exit::wrong_data);
  EXPECT_EQ(r.row().at("wrong"), 12);  // The first call, one of warm-up, ten counted.
}

TEST(Bench, CheckAllSeesAnInputThatOnlyALaterCallChanges) {
  BenchOptions options = two_ranks(
      1, [calls = std::make_shared<int>(0)](auto ops, const Call& call, const auto& real) {
        Work work = real(ops, call);
        if (++*calls == 7)
          static_cast<std::byte*>(const_cast<void*>(ops.front().in.data))[9] ^= std::byte{1};
        return work;
      });
  options.timing.check = Check::all;
  const Result r = run(options);
  EXPECT_EQ(r.row().at("wrong"), 1);
  EXPECT_EQ(r.row().at("first_wrong").at("array"), "in");
}

TEST(Bench, TheTimeOfARowIncludesThePriceOfCheckAll) {
  BenchOptions options = two_ranks(0, {});
  options.request.sizes = parse_sizes("2M");
  options.timing.iters.reset();
  options.timing.min_time = 200ms;
  options.timing.check = Check::all;
  options.timing.samples = Samples::all;
  options.timing.rank_agg = RankAgg::rank0;
  const Json row = run(options).row();
  double total_us = 0;
  for (const Json& sample : row.at("samples_us")) total_us += sample.get<double>();
  // The calls alone are a part of the time; without the rule they would take all of it. Ten are
  // made on a busy machine, too.
  if (row.at("time_us").at("n") > 10) {
    EXPECT_LT(total_us, 160e3);
  }
}

TEST(Bench, SeveralCallsInOneIterationAreOneLaunchAndAllAreChecked) {
  const auto launched = std::make_shared<std::vector<std::size_t>>();
  BenchOptions options = two_ranks(1, [launched](auto ops, const Call& call, const auto& real) {
    Work work = real(ops, call);
    work.wait();
    if (launched->size() == 6) static_cast<std::byte*>(ops[2].out.data)[4] ^= std::byte{1};
    launched->push_back(ops.size());
    return work;
  });
  options.timing.aggregate = 4;
  options.timing.check = Check::all;
  const Result r = run(options);
  EXPECT_EQ(*launched, std::vector<std::size_t>(12, 4));  // The check, one of warm-up, ten counted.
  EXPECT_EQ(r.row().at("calls_per_sample"), 4);
  EXPECT_EQ(r.row().at("wrong"), 1);
  EXPECT_EQ(r.row().at("first_wrong").at("index"), 1);
}

TEST(Bench, ASampleOfSeveralCallsIsTheMeanOfOne) {
  BenchOptions options = two_ranks(1, [](auto ops, const Call& call, const auto& real) {
    std::this_thread::sleep_for(8ms);
    return real(ops, call);
  });
  options.timing.aggregate = 4;
  const Json row = run(options).row();
  EXPECT_GE(row.at("time_us").at("min"), 2000);
  EXPECT_LT(row.at("time_us").at("min"), 8000);
}

/// The overlap of a run in which rank 1 calls `wait` in each all_reduce.
Json overlap_with(const std::function<void()>& wait) {
  BenchOptions options = two_ranks(1, [wait](auto ops, const Call& call, const auto& real) {
    wait();
    return real(ops, call);
  });
  options.timing.overlap = true;
  options.timing.iters = 5;
  options.timing.check = Check::all;
  const Result r = run(options);
  EXPECT_EQ(r.code, Exit::ok) << r.err;
  EXPECT_EQ(r.row().at("wrong"), 0);
  return r.row().at("overlap");
}

TEST(Bench, ComputeBesideACallThatSleepsIsHidden) {
  double hidden = 0;
  // Near 100 on an idle machine; a busy one may run the compute late.
  for (int tries = 0; tries < 5 && hidden < 50; ++tries) {
    const Json overlap = overlap_with([] { std::this_thread::sleep_for(20ms); });
    EXPECT_GE(overlap.at("comm_us"), 20e3);
    EXPECT_GE(overlap.at("compute_us"), 15e3);
    EXPECT_GE(overlap.at("overall_us"), 20e3);
    const double left =
        overlap.at("overall_us").get<double>() - overlap.at("compute_us").get<double>();
    hidden = 100 * (1 - left / overlap.at("comm_us").get<double>());
    EXPECT_NEAR(overlap.at("percent"), std::clamp(hidden, 0.0, 100.0), 1e-6);
  }
  EXPECT_GE(hidden, 50);
}

TEST(Bench, WithoutACheckWrongIsUnknownNotZero) {
  BenchOptions options = two_ranks(0, {});
  options.timing.check = Check::none;
  const Result r = run(options);
  EXPECT_EQ(r.code, Exit::ok);
  EXPECT_TRUE(r.row().at("wrong").is_null());
}

TEST(Bench, AnOutputThatWasNeverWrittenIsAllWrong) {
  const Result r = run(two_ranks(0, [](auto ops, const Call& call, const auto& real) {
    std::vector<std::byte> before(ops.front().out.bytes());
    std::memcpy(before.data(), out_bytes(ops), before.size());
    Work work = real(ops, call);
    std::memcpy(out_bytes(ops), before.data(), before.size());
    return work;
  }));
  EXPECT_EQ(r.row().at("wrong"), 256);
}

TEST(Bench, AByteWrittenBehindTheOutputIsWrong) {
  const Result r = run(two_ranks(1, [](auto ops, const Call& call, const auto& real) {
    Work work = real(ops, call);
    out_bytes(ops)[1024] = std::byte{0};
    return work;
  }));
  EXPECT_EQ(r.code, Exit::wrong_data);
  EXPECT_EQ(r.row().at("wrong"), 1);
  EXPECT_EQ(r.row().at("first_wrong").at("index"), 256);
  EXPECT_EQ(r.row().at("first_wrong").at("got"), "byte 0x00");
}

TEST(Bench, AChangedInputIsWrong) {
  const Result r = run(two_ranks(0, [](auto ops, const Call& call, const auto& real) {
    Work work = real(ops, call);
    static_cast<std::byte*>(const_cast<void*>(ops.front().in.data))[9] ^= std::byte{1};
    return work;
  }));
  EXPECT_EQ(r.code, Exit::wrong_data);
  EXPECT_EQ(r.row().at("first_wrong").at("array"), "in");
  EXPECT_EQ(r.row().at("first_wrong").at("index"), 2);
}

TEST(Bench, ALateRankIsNamedInAHangReportAndTheRunEndsInTime) {
  BenchOptions options = two_ranks(
      1, [calls = std::make_shared<int>(0)](auto ops, const Call& call, const auto& real) {
        if (++*calls == 5) std::this_thread::sleep_for(700ms);
        return real(ops, call);
      });
  options.timeout = 200ms;
  const auto start = std::chrono::steady_clock::now();
  const Result r = run(options);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
  EXPECT_EQ(r.code, Exit::timeout);
  EXPECT_EQ(r.json.at("status"), "timeout");
  for (const char* part : {"error: all_reduce timed out after 0.2 s", "size 1 KiB", "iteration 2",
                           "group world", "cause   : rank 0", "--timeout"})
    EXPECT_TRUE(contains(r.err, part)) << part << "\n" << r.err;
}

/// Rank 1 sleeps after a call, so the next one never begins while the other ranks wait in it.
BenchOptions with_a_late_rank() {
  BenchOptions options = two_ranks(
      1, [calls = std::make_shared<int>(0)](auto ops, const Call& call, const auto& real) {
        Work work = real(ops, call);
        if (++*calls == 4) std::this_thread::sleep_for(700ms);
        return work;
      });
  options.timeout = 200ms;
  return options;
}

TEST(Bench, ARankThatNeverEntersIsMissingInTheHangReport) {
  const BenchOptions options = with_a_late_rank();
  const Result r = run(options);
  EXPECT_EQ(r.code, Exit::timeout);
  for (const char* part : {"timed out after 0.2 s", "entered : 0\n", "missing : 1 (", ", pid ",
                           "s ago in all_reduce #", "Rank 1 did not make the call in time"})
    EXPECT_TRUE(contains(r.err, part)) << part << "\n" << r.err;
}

TEST(Bench, RanksThatDisagreeEndWithBothSidesAndTheTimeoutCode) {
  BenchOptions options = two_ranks(
      1, [calls = std::make_shared<int>(0)](auto ops, const Call& call, const auto& real) {
        if (++*calls != 5) return real(ops, call);
        Op other = ops.front();
        other.reduce = ReduceOp::max;
        Call changed = call;
        changed.fingerprint ^= 1;
        return real(std::span(&other, 1), changed);
      });
  const Result r = run(options);
  EXPECT_EQ(r.code, Exit::timeout) << r.err;
  EXPECT_TRUE(contains(r.err, "error: the ranks disagree about all_reduce")) << r.err;
  EXPECT_TRUE(contains(r.err, "sum")) << r.err;
  EXPECT_TRUE(contains(r.err, "max")) << r.err;
}

TEST(Bench, AnotherExceptionOfOneRankEndsAllRanksAtOnce) {
  BenchOptions options = two_ranks(
      1, [calls = std::make_shared<int>(0)](auto ops, const Call& call, const auto& real) -> Work {
        if (++*calls == 5) throw std::runtime_error("the disk is full of eels");
        return real(ops, call);
      });
  const auto start = std::chrono::steady_clock::now();
  const Result r = run(options);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);  // The timeout is 60 s.
  EXPECT_EQ(r.code, Exit::internal);
  EXPECT_EQ(r.json.at("status"), "error");
  EXPECT_TRUE(contains(r.err, "eels")) << r.err;
}

TEST(Bench, AnOperationThatTheBackendLacksIsUnavailableWhenAskedForAndLeftOutOfAll) {
  BenchOptions options = two_ranks(0, {});
  options.decorate = [](int, std::unique_ptr<Backend> inner) {
    return std::unique_ptr<Backend>(std::make_unique<Lacking>(
        std::move(inner), [](Operation o) { return o == Operation::all_reduce; }));
  };
  Result r = run(options);
  EXPECT_EQ(r.code, Exit::unavailable);
  EXPECT_TRUE(contains(r.err, "does not support all_reduce")) << r.err;
  options.skip_unavailable = true;
  EXPECT_EQ(run(options).code, Exit::skipped);

  options.request.collectives.all = true;
  options.request.collectives.values.push_back(find_collective("broadcast"));
  r = run(options);
  EXPECT_EQ(r.code, Exit::ok);
  EXPECT_EQ(r.json.at("results").size(), 1U);
  EXPECT_EQ(r.row().at("coll"), "broadcast");
  EXPECT_TRUE(contains(r.json.at("notes").dump(), "all_reduce"));
}

TEST(Bench, IterationsGoOnUntilTheMinimumTimeIsReached) {
  BenchOptions options = two_ranks(0, {});
  options.timing.iters.reset();
  options.timing.warmup.reset();
  options.timing.min_time = 50ms;
  options.timing.samples = Samples::all;
  options.timing.rank_agg = RankAgg::rank0;  // Rank 0, which decides.
  const Json row = run(options).row();
  double total_us = 0;
  for (const Json& sample : row.at("samples_us")) total_us += sample.get<double>();
  EXPECT_GE(total_us, 50e3);
  EXPECT_LT(total_us, 10e6);  // A busy machine reacts late.
  EXPECT_GE(row.at("time_us").at("n"), 10);
  EXPECT_GE(row.at("warmup_calls"), 9);
  EXPECT_LE(row.at("warmup_calls"), 50);
}

TEST(Bench, SlowCallsAreStillMeasuredTenTimes) {
  BenchOptions options = two_ranks(1, [](auto ops, const Call& call, const auto& real) {
    std::this_thread::sleep_for(3ms);
    return real(ops, call);
  });
  options.timing.iters.reset();
  options.timing.min_time = 1ms;
  const Json row = run(options).row();
  EXPECT_EQ(row.at("time_us").at("n"), 10);
  EXPECT_GE(row.at("time_us").at("min"), 3000);
  EXPECT_EQ(row.at("flags").at(0), "few_samples");
}

TEST(Bench, IterationTimeIsCombinedAsAskedAndBandwidthFromTheMean) {
  BenchOptions options = two_ranks(0, {});
  options.timing.samples = Samples::all;
  for (const RankAgg agg : {RankAgg::max, RankAgg::mean, RankAgg::min}) {
    options.timing.rank_agg = agg;
    const Json row = run(options).row();
    const double bytes = row.at("bytes").get<double>();
    const double mean_us = (row.at("time_us_rank_mean")[0].get<double>() +
                            row.at("time_us_rank_mean")[1].get<double>()) /
                           2;
    EXPECT_NEAR(row.at("algbw").get<double>(), bytes / mean_us / 1000, 1e-9);
    EXPECT_NEAR(row.at("busbw").get<double>(), row.at("algbw").get<double>(), 1e-9);  // 2 ranks.
    const double combined = row.at("time_us").at("mean").get<double>();
    if (agg == RankAgg::mean) {
      EXPECT_NEAR(combined, mean_us, mean_us * 1e-6);
    }
    if (agg == RankAgg::max) {
      EXPECT_GE(combined, mean_us * 0.999999);
    }
    if (agg == RankAgg::min) {
      EXPECT_LE(combined, mean_us * 1.000001);
    }
  }
}

TEST(Bench, NoFurtherSizeIsMeasuredAfterTheTotalTime) {
  BenchOptions options = two_ranks(1, [](auto ops, const Call& call, const auto& real) {
    std::this_thread::sleep_for(5ms);
    return real(ops, call);
  });
  options.request.sizes = parse_sizes("8,16,32");
  options.max_total = 20ms;  // Less than the time of the first size.
  const Result r = run(options);
  EXPECT_EQ(r.code, Exit::ok);
  EXPECT_EQ(r.json.at("results").size(), 1U);
  EXPECT_TRUE(contains(r.json.at("notes").dump(), "2 of 3 rows")) << r.json.at("notes");
}

TEST(Bench, ColdRotatesOverSeveralBuffers) {
  const auto seen = std::make_shared<std::vector<const void*>>();
  BenchOptions options = two_ranks(0, [seen](auto ops, const Call& call, const auto& real) {
    if (std::find(seen->begin(), seen->end(), ops.front().out.data) == seen->end())
      seen->push_back(ops.front().out.data);
    return real(ops, call);
  });
  EXPECT_EQ(run(options).code, Exit::ok);
  EXPECT_EQ(seen->size(), 1U);
  seen->clear();
  options.cold = true;
  options.timing.check = Check::all;  // Also the results in the other buffers.
  EXPECT_EQ(run(options).row().at("wrong"), 0);
  EXPECT_EQ(seen->size(),
            11U);  // One warm-up call, ten counted; the first check used the first buffer.
}

/// all_gather of 1 KiB with uneven blocks; all calls of rank 1 go through `change`.
BenchOptions uneven(const char* name, const Changed::Change& change) {
  BenchOptions options = two_ranks(1, {});
  options.ranks = 3;
  options.request.collectives.values = {find_collective(name)};
  options.request.counts = {{Counts::parse("linear")}, false, true};
  options.decorate = [change](int rank, std::unique_ptr<Backend> inner) {
    if (rank != 1) return inner;
    return std::unique_ptr<Backend>(std::make_unique<Changed>(std::move(inner), change));
  };
  return options;
}

Work unchanged(std::span<const Op> ops, const Call& call, const Changed::Real& real) {
  return real(ops, call);
}

TEST(Bench, PaddedRowsAreCheckedWithTheirFill) {
  BenchOptions options = uneven("all_gather_padded", unchanged);
  options.request.sizes = parse_sizes("1K,1M");
  const Result r = run(options);
  EXPECT_EQ(r.code, Exit::ok) << r.err;
  ASSERT_EQ(r.json.at("results").size(), 2U);
  EXPECT_EQ(r.row().at("wrong"), 0);
  EXPECT_EQ(r.row().at("counts"), Json({42, 86, 128}));
}

TEST(Bench, AWrongByteInAnotherRanksBlockIsSeen) {
  for (const char* name : {"all_gather", "all_gather_rows", "all_gather_padded"}) {
    BenchOptions options = uneven(name, [](auto ops, const Call& call, const auto& real) {
      Work work = real(ops, call);
      if (ops.front().kind == Operation::all_gather) out_bytes(ops)[0] ^= std::byte{1};
      return work;
    });
    options.request.sizes = parse_sizes("1M");  // More than a metadata exchange inlines.
    const Result r = run(options);
    EXPECT_EQ(r.code, Exit::wrong_data) << name << r.err;
    EXPECT_EQ(r.row().at("wrong"), 1) << name;
    EXPECT_EQ(r.row().at("first_wrong").at("index"), 0) << name;
  }
}

/// Ranks as under a launcher, but on threads: each has only its environment and the store.
class Told final : public ClusterEnvironment {
 public:
  Told(int rank, int size, std::string store) : info_{"test", rank, size, -1, -1, -1, store} {}
  std::optional<ClusterInfo> detect() const override { return info_; }

 private:
  ClusterInfo info_;
};

struct Member {
  Exit code = Exit::ok;
  std::string out{};
  std::string err{};
};
std::vector<Member> run_members(
    const BenchOptions& options, int size,
    const std::function<void(int rank, BenchOptions& own)>& alter = {}) {
  static std::atomic<int> runs = 0;
  const std::string address = "memory://bench-" + std::to_string(runs++);
  const auto store = open_store(address);  // Outlives all users.
  std::vector<Member> members(static_cast<std::size_t>(size));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank, &member = members[static_cast<std::size_t>(rank)]] {
      BenchOptions own = options;
      own.ranks.reset();
      own.environment = std::make_shared<Told>(rank, size, address);
      if (alter) alter(rank, own);
      Captured out;
      Captured err;
      member.code = run_bench(own, out.file(), err.file());
      member.out = out.text();
      member.err = err.text();
    });
  threads.clear();
  return members;
}

TEST(Members, OnlyRankZeroPrintsAndAllEndWithItsCode) {
  BenchOptions options = two_ranks(1, [](auto ops, const Call& call, const auto& real) {
    Work work = real(ops, call);
    if (call.seq > 5) out_bytes(ops)[0] ^= std::byte{1};
    return work;
  });
  options.timing.check = Check::all;
  const std::vector<Member> members = run_members(options, 3);
  for (const Member& member : members) EXPECT_EQ(member.code, Exit::wrong_data) << member.err;
  const Json json = Json::parse(members[0].out);
  EXPECT_EQ(json.at("world").at("size"), 3);
  EXPECT_EQ(json.at("world").at("threads"), false);
  EXPECT_EQ(json.at("results").at(0).at("first_wrong").at("rank"), 1);
  EXPECT_TRUE(contains(members[0].err, "rank 1 out[0]")) << members[0].err;
  for (const int other : {1, 2}) {
    EXPECT_EQ(members[static_cast<std::size_t>(other)].out, "");
    EXPECT_EQ(members[static_cast<std::size_t>(other)].err, "");
  }
}

TEST(Members, AHangReportHasTheTracesOfAllProcesses) {
  const BenchOptions options = with_a_late_rank();
  const std::vector<Member> members = run_members(options, 3);
  for (const Member& member : members) EXPECT_EQ(member.code, Exit::timeout) << member.err;
  EXPECT_EQ(Json::parse(members[0].out).at("status"), "timeout");
  for (const char* part : {"timed out after 0.2 s", "size 1 KiB", "entered : 0 2\n",
                           "missing : 1 (", ", pid ", "s ago in all_reduce #"})
    EXPECT_TRUE(contains(members[0].err, part)) << part << "\n" << members[0].err;
  EXPECT_EQ(members[1].err, "");
}

TEST(Members, AnErrorOfAnotherProcessIsToldByRankZero) {
  const std::vector<Member> members = run_members(
      two_ranks(
          2,
          [calls = std::make_shared<int>(0)](auto ops, const Call& call, const auto& real) -> Work {
            if (++*calls == 5) throw std::runtime_error("the disk is full of eels");
            return real(ops, call);
          }),
      3);
  for (const Member& member : members) EXPECT_EQ(member.code, Exit::internal);
  EXPECT_TRUE(contains(members[0].err, "eels")) << members[0].err;
}

TEST(Members, ARankThatWasToldToMeasureSomethingElseEndsTheRunBeforeTheData) {
  const std::vector<void (*)(BenchOptions&)> others{
      [](BenchOptions& own) { own.request.sizes = parse_sizes("2K"); },
      [](BenchOptions& own) { own.timing.overlap = true; },
      [](BenchOptions& own) { own.timing.aggregate = 2; },
      [](BenchOptions& own) { own.timing.check = Check::all; },
      [](BenchOptions& own) { own.links = true; }};
  for (const auto& change : others) {
    const std::vector<Member> members =
        run_members(two_ranks(0, {}), 3, [change](int rank, BenchOptions& own) {
          if (rank == 2) change(own);
        });
    for (const Member& member : members) EXPECT_EQ(member.code, Exit::usage) << member.err;
    EXPECT_TRUE(contains(members[0].err, "rank 2 was started with other options"))
        << members[0].err;
  }
}

TEST(Members, ARankThatSendsNoWordIsNamed) {
  BenchOptions options = two_ranks(0, {});
  options.timeout = 200ms;
  options.patience = 50ms;
  options.ranks.reset();
  options.environment = std::make_shared<Told>(0, 2, "memory://silent");
  const auto store = open_store("memory://silent");
  const std::string plan = fingerprint(make_plan(options.request, 2), options, 2);
  const std::jthread vanishing([store, plan] {
    const ProcessGroup group =
        ProcessGroup::create({.backend = "local", .store = store, .rank = 1, .size = 2});
    const nlohmann::json info{{"rank", 1},       {"host", "far"}, {"pid", 4411},
                              {"device", "cpu"}, {"cpuset", "0"}, {"model", ""}};
    const nlohmann::json first{{"info", info}, {"cpus", {0}}, {"plan", plan}};
    store->set("tool/0/1", to_message(first));  // And never another one.
    (void)store->get("end of the test", 10s);
  });
  Captured out;
  Captured err;
  EXPECT_EQ(run_bench(options, out.file(), err.file()), Exit::timeout);
  store->set("end of the test", "now");
  for (const char* part : {"entered : 0\n", "missing : 1 (far, pid 4411) sent no report", "killed"})
    EXPECT_TRUE(contains(err.text(), part)) << part << "\n" << err.text();
}

/// Runs three sizes, in the second of which `end` is called.
Result interrupted(Interrupt& interrupt, const std::function<void()>& end) {
  BenchOptions options = two_ranks(
      1, [&, calls = std::make_shared<int>(0)](auto ops, const Call& call, const auto& real) {
        if (++*calls == 15) end();
        return real(ops, call);
      });
  options.request.sizes = parse_sizes("8,16,32");
  options.interrupt = &interrupt;
  Result r = run(options);
  EXPECT_EQ(r.code, Exit::interrupted);
  EXPECT_EQ(r.json.at("status"), "interrupted");
  return r;
}

TEST(Bench, AnInterruptFinishesTheSizeAndNoMore) {
  Interrupt interrupt;
  const Result r = interrupted(interrupt, [&] { interrupt.ask(); });
  ASSERT_EQ(r.json.at("results").size(), 2U);
  EXPECT_EQ(r.json.at("results").at(1).at("time_us").at("n"), 10);
  EXPECT_TRUE(contains(r.json.at("notes").dump(), "interrupted: 1 of 3 rows")) << r.json;
}

TEST(Bench, AnAbortOnRequestKeepsWhatWasComplete) {
  Interrupt interrupt;
  const Result r = interrupted(interrupt, [&] { interrupt.abort("enough"); });
  EXPECT_EQ(r.json.at("results").size(), 1U);
  EXPECT_FALSE(interrupt.abort("there is no group any more"));
}

/// Display columns: counts bytes that do not continue a UTF-8 character.
std::size_t columns(const std::string& line) {
  std::size_t n = 0;
  for (const char c : line) n += (static_cast<unsigned char>(c) & 0xc0) != 0x80 ? 1 : 0;
  return n;
}

void expect_narrow(const std::string& text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    const std::string line = text.substr(at, end - at);
    EXPECT_LE(columns(line), 80U) << line;
    at = end + 1;
  }
}

TEST(Bench, TheTableStaysWithin80ColumnsAndSaysItsUnits) {
  BenchOptions options = two_ranks(0, {});
  options.format = Format::table;
  options.request.collectives.values.push_back(find_collective("barrier"));
  options.request.dtypes = {{DType::boolean, DType::f32}, true, true};
  options.request.ops = {
      {ReduceOp::Kind::avg, ReduceOp::Kind::band, ReduceOp::Kind::premul_sum}, true, true};
  options.request.sizes = parse_sizes("8,1020,1M");
  Captured out;
  Captured err;
  ASSERT_EQ(run_bench(options, out.file(), err.file()), Exit::ok);
  const std::string text = out.text();
  expect_narrow(text);
  for (const char* part :
       {"1 GB/s = 1e9 B/s", "2 ranks / 1 host", "p50 µs", "all_reduce  f32 avg  out-of-place",
        "1020 B", "left out", "0 wrong elements"})
    EXPECT_TRUE(contains(text, part)) << part << "\n" << text;
}

TEST(Bench, TheTableOfUnevenRowsStaysWithin80Columns) {
  BenchOptions options = uneven("all_gather_rows", unchanged);
  options.format = Format::table;
  options.request.counts = {{Counts::parse("last-short"), Counts::parse("zipf:1.5")}, false, true};
  options.request.sizes = parse_sizes("8,1020,1M");
  const std::string several = output_of(options);
  options.request.counts.values.pop_back();
  for (const std::string& text : {several, output_of(options)}) {
    expect_narrow(text);
    for (const char* part : {"counts last-short", "p50 µs", "0 wrong elements"})
      EXPECT_TRUE(contains(text, part)) << part << "\n" << text;
  }
}

}  // namespace
}  // namespace tutti::tool
