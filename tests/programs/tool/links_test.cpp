#include "links/links.hpp"

#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "bench_runs.hpp"

namespace tutti::tool {
namespace {

using namespace std::chrono_literals;
using Names = std::vector<std::vector<std::int64_t>>;

// The rule, on synthetic times.

/// Times around 10 µs with noise, multiplied by `factor(a, b)`.
std::vector<LinkTime> times(int ranks, unsigned seed, double noise,
                            const std::function<double(int, int)>& factor,
                            const std::vector<int>& hosts = {}) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal(0, noise);
  std::vector<LinkTime> links;
  for (int a = 0; a < ranks; ++a) {
    for (int b = a + 1; b < ranks; ++b) {
      const auto host = [&](int r) {
        return hosts.empty() ? 0 : hosts[static_cast<std::size_t>(r)];
      };
      links.push_back({a, b, host(a) != host(b), 10 * std::exp(normal(engine)) * factor(a, b)});
    }
  }
  return links;
}

Names names_in(const std::vector<LinkTime>& links) {
  Names names;
  for (const Slow& slow : find_slow(links, 8)) names.push_back(slow.ranks);
  return names;
}

double alike(int, int) {
  return 1;
}
double slow_rank_2(int a, int b) {
  return a == 2 || b == 2 ? 20 : 1;
}
double slow_link_0_1(int a, int b) {
  return a == 0 && b == 1 ? 20 : 1;
}

TEST(SlowRule, NamesNoRankWhereTheTimesDifferByNoise) {
  for (int ranks = 2; ranks <= 16; ++ranks)
    for (unsigned seed = 0; seed < 200; ++seed)
      EXPECT_EQ(names_in(times(ranks, seed, 0.1, alike)), Names()) << ranks << " seed " << seed;
}

TEST(SlowRule, NamesASlowRankAndNoLinkOfIt) {
  for (int ranks = 3; ranks <= 16; ++ranks)
    for (unsigned seed = 0; seed < 50; ++seed)
      EXPECT_EQ(names_in(times(ranks, seed, 0.1, slow_rank_2)), Names{{2}}) << ranks;
}

TEST(SlowRule, NamesASlowLinkAndNoRankOfIt) {
  for (int ranks = 3; ranks <= 16; ++ranks)
    for (unsigned seed = 0; seed < 50; ++seed)
      EXPECT_EQ(names_in(times(ranks, seed, 0.1, slow_link_0_1)), (Names{{0, 1}})) << ranks;
}

TEST(SlowRule, NamesARankAndALinkOfOtherRanks) {
  const auto both = [](int a, int b) { return std::max(slow_rank_2(a, b), slow_link_0_1(a, b)); };
  for (int ranks = 4; ranks <= 16; ++ranks)
    EXPECT_EQ(names_in(times(ranks, 1, 0.1, both)), (Names{{2}, {0, 1}})) << ranks;
}

TEST(SlowRule, TwoRanksHaveNoOtherLinkToCompareWith) {
  EXPECT_EQ(names_in({{0, 1, false, 1e6}}), Names());
}

TEST(SlowRule, TheFactorIsThreeOnAHostAndTwoBetweenHosts) {
  const auto by = [](double factor, const std::vector<int>& hosts) {
    return names_in(times(
        5, 1, 0, [=](int a, int b) { return a == 1 && b == 3 ? factor : 1; }, hosts));
  };
  EXPECT_EQ(by(3, {}), Names());
  EXPECT_EQ(by(3.1, {}), (Names{{1, 3}}));
  EXPECT_EQ(by(2, {0, 1, 2, 3, 4}), Names());
  EXPECT_EQ(by(2.1, {0, 1, 2, 3, 4}), (Names{{1, 3}}));
}

TEST(SlowRule, BesideOneOrTwoOtherLinksTheFactorIsTwice) {
  EXPECT_EQ(names_in({{0, 1, false, 6}, {0, 2, false, 6}, {1, 2, false, 1}}), Names());
  EXPECT_EQ(names_in({{0, 1, false, 6.1}, {0, 2, false, 6.1}, {1, 2, false, 1}}), (Names{{0}}));
}

TEST(SlowRule, ALinkAmongLinksThatDifferMuchIsNotSlow) {
  // Deviations of the others from their median, 30: 20, 10, 0, 10, 20. Five standard deviations
  // are 74.
  EXPECT_EQ(names_in({{0, 1, false, 10},
                      {0, 2, false, 20},
                      {0, 3, false, 30},
                      {1, 2, false, 40},
                      {1, 3, false, 50},
                      {2, 3, false, 100}}),
            Names());
}

TEST(SlowRule, LinksBetweenHostsAreNotComparedWithThoseOnAHost) {
  for (const std::vector<int>& hosts :
       {std::vector{0, 0, 1}, {0, 0, 0, 1}, {0, 0, 1, 1}, {0, 0, 0, 0, 1, 1, 1, 1}, {0, 0, 1, 2}}) {
    const int ranks = static_cast<int>(hosts.size());
    const auto host = [&](int rank) { return hosts[static_cast<std::size_t>(rank)]; };
    const auto network = [&](int a, int b) { return host(a) == host(b) ? 0.05 : 1; };
    for (unsigned seed = 0; seed < 50; ++seed)
      EXPECT_EQ(names_in(times(ranks, seed, 0.1, network, hosts)), Names()) << ranks;
  }
  // A slow link on a host is faster than any between hosts.
  const std::vector<int> hosts{0, 0, 0, 0, 1, 1, 1, 1};
  const auto slow = [&](int a, int b) { return b < 4 || a >= 4 ? 0.05 * slow_link_0_1(a, b) : 1; };
  EXPECT_EQ(names_in(times(8, 1, 0.1, slow, hosts)), (Names{{0, 1}}));
}

// Whole runs.

/// The messages of a rank to and from `peer` (-1: any) are late.
Decorate late(int slow_rank, int peer = -1) {
  return [=](int rank, std::unique_ptr<Backend> inner) -> std::unique_ptr<Backend> {
    if (rank != slow_rank) return inner;
    return std::make_unique<Changed>(
        std::move(inner),
        [=](std::span<const Op> ops, const Call& call, const Changed::Real& real) {
          const Op& op = ops.front();
          if (op.kind == Operation::send && (peer == -1 || op.peer == peer))
            std::this_thread::sleep_for(2ms);
          return real(ops, call);
        });
  };
}

/// An all_reduce of 10 iterations.
BenchOptions local(int ranks, bool links, const Decorate& decorate = {}) {
  BenchOptions options;
  options.ranks = ranks;
  options.backend = "local";
  options.format = Format::json;
  options.request.collectives.values = {find_collective("all_reduce")};
  options.request.sizes = parse_sizes("1K");
  options.timing.iters = 10;
  options.links = links;
  options.decorate = decorate;
  return options;
}

std::set<Json> named(const Json& run) {
  std::set<Json> ranks;
  for (const Json& slow : run.at("slow")) ranks.insert(slow.at("ranks"));
  return ranks;
}

TEST(Links, NameTheSlowRankAndEndWith3) {
  const Result r = run(local(4, true, late(1)));
  EXPECT_EQ(r.code, Exit::found) << r.err;
  EXPECT_EQ(named(r.json), std::set<Json>{Json({1})}) << r.json.at("slow");
  EXPECT_EQ(r.json.at("links").size(), 12U);
  // Repeated before it was named.
  for (const Json& row : r.json.at("links"))
    EXPECT_EQ(row.at("latency_us").at("n") == 7, row.at("from") == 1 || row.at("to") == 1) << row;
}

TEST(Links, NameTheSlowLink) {
  const Result r = run(local(4, true, late(0, 3)));
  EXPECT_EQ(r.code, Exit::found) << r.err;
  EXPECT_EQ(named(r.json), std::set<Json>{Json({0, 3})}) << r.json.at("slow");
}

TEST(Links, NameNoRankAmongEqualRanks) {
  for (const int ranks : {2, 3, 4}) {
    const Result r = run(local(ranks, true));
    EXPECT_EQ(r.code, Exit::ok) << r.err;
    EXPECT_TRUE(r.json.at("slow").empty()) << r.json.at("slow");
    EXPECT_EQ(r.json.at("links").size(), static_cast<std::size_t>(ranks * (ranks - 1)));
  }
}

TEST(Links, AWrongByteEndsTheRun) {
  const Result r = run(local(3, true, [](int rank, std::unique_ptr<Backend> inner) {
    if (rank != 2) return inner;
    const auto change = [](std::span<const Op> ops, const Call& call, const Changed::Real& real) {
      Work work = real(ops, call);
      const TensorView& out = ops.front().out;
      if (ops.front().kind != Operation::recv || out.bytes() != bandwidth_bytes) return work;
      work.wait();
      static_cast<unsigned char*>(out.data)[1000] ^= 1;
      return work;
    };
    return std::unique_ptr<Backend>(std::make_unique<Changed>(std::move(inner), change));
  }));
  EXPECT_EQ(r.code, Exit::wrong_data);
  EXPECT_TRUE(contains(r.err, "rank 2: byte 1000 of 262144 from rank")) << r.err;
}

/// In an all_reduce all ranks wait for the slowest, so their times do not tell which it is.
TEST(Links, BenchNamesTheSlowRankWithoutTheOptionToo) {
  EXPECT_TRUE(run(local(3, false)).json.at("slow").empty());
  BenchOptions options = local(3, false, late(2));
  const Result r = run(options);
  EXPECT_EQ(r.code, Exit::ok);
  EXPECT_EQ(named(r.json), std::set<Json>{Json({2})}) << r.json.at("slow");
  EXPECT_FALSE(r.json.contains("links"));
  options.format = Format::table;
  Captured out;
  Captured err;
  EXPECT_EQ(run_bench(options, out.file(), err.file()), Exit::ok);
  EXPECT_TRUE(contains(out.text(), "\n  slow rank 2: 8 B take ")) << out.text();
}

// Messages between pairs in `tutti bench`.

BenchOptions messages(const char* pattern, int ranks) {
  BenchOptions options = local(ranks, false);
  options.request.collectives.values = {find_collective(pattern)};
  options.timing.warmup = 1;
  return options;
}

TEST(Messages, TheTimeIsThatOfOneMessage) {
  for (const auto& [pattern, in_call] : {std::pair("ping_pong", 2), std::pair("bandwidth", 64),
                                         std::pair("two_way_bandwidth", 64)}) {
    BenchOptions options = messages(pattern, 2);
    options.timing.iters = 3;
    options.timing.warmup = 0;
    options.decorate = late(0);
    const Json row = run(options).row();
    EXPECT_EQ(row.at("calls_per_sample"), in_call) << pattern;
    // Rank 0 sends half of the messages of a ping-pong, and takes 2 ms for each.
    const double expected_us = in_call == 2 ? 1000 : 2000;
    EXPECT_GT(row.at("time_us").at("min"), 0.99 * expected_us) << pattern;
    EXPECT_LT(row.at("time_us").at("min"), 2 * expected_us) << pattern;
    const double rate = row.at("messages_per_s");
    const double mean = row.at("time_us_rank_mean").at(0);
    EXPECT_NEAR(rate * mean * 1e-6, std::string(pattern) == "two_way_bandwidth" ? 2 : 1, 1e-6);
  }
}

TEST(Messages, TheRateIsThatOfAllPairs) {
  const Json row = run(messages("bandwidth", 4)).row();
  const double mean = (row.at("time_us_rank_mean").at(0).get<double>() +
                       row.at("time_us_rank_mean").at(1).get<double>()) /
                      2;
  EXPECT_NEAR(row.at("messages_per_s").get<double>() * mean * 1e-6, 2, 1e-6);
  EXPECT_EQ(row.at("wrong"), 0);
}

TEST(Messages, EveryMessageOfAWindowIsChecked) {
  for (const char* pattern : {"bandwidth", "two_way_bandwidth"}) {
    BenchOptions options = messages(pattern, 4);
    // Rank 2 receives from rank 0.
    options.decorate = [](int rank, std::unique_ptr<Backend> inner) {
      if (rank != 2) return inner;
      const auto received = std::make_shared<int>(0);
      const auto change = [received](std::span<const Op> ops, const Call& call,
                                     const Changed::Real& real) {
        Work work = real(ops, call);
        if (ops.front().kind != Operation::recv || ops.front().out.bytes() != 1024) return work;
        if (ops.front().peer != 0 || (*received)++ != 5) return work;
        work.wait();
        static_cast<float*>(ops.front().out.data)[3] += 1;
        return work;
      };
      return std::unique_ptr<Backend>(std::make_unique<Changed>(std::move(inner), change));
    };
    const Result r = run(options);
    EXPECT_EQ(r.code, Exit::wrong_data) << pattern;
    EXPECT_EQ(r.row().at("wrong"), 1) << pattern;
    EXPECT_EQ(r.row().at("first_wrong").at("rank"), 2) << pattern;
  }
}

}  // namespace
}  // namespace tutti::tool
