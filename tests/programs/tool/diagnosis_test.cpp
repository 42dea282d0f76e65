#include "inspect/diagnosis.hpp"

#include <chrono>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace tutti::tool {
namespace {

using namespace std::chrono_literals;
using State = TraceEntry::State;

const auto now = std::chrono::system_clock::time_point(1000h);

TraceEntry call(std::uint64_t seq, Operation operation, State state, std::int64_t bytes = 16) {
  const bool rooted = operation == Operation::broadcast;
  return {.seq = seq,
          .operation = operation,
          .dtype = DType::f32,
          .bytes = bytes,
          .peer = rooted ? 0 : -1,
          .state = state,
          .started = std::chrono::steady_clock::time_point(900h)};
}
TraceEntry reduced(std::uint64_t seq, State state, std::int64_t bytes = 16) {
  return call(seq, Operation::all_reduce, state, bytes);
}
TraceEntry message(std::uint64_t seq, Operation operation, int peer, State state) {
  auto e = call(seq, operation, state);
  e.peer = peer;
  return e;
}

RankTrace trace(int rank, int size, Trace collectives, Trace messages = {}) {
  return {.file = {.group = "world",
                   .made = 1,
                   .rank = rank,
                   .size = size,
                   .pid = 100 + rank,
                   .host = "node1",
                   .wall_offset = 99h,
                   .collectives = std::move(collectives),
                   .messages = std::move(messages)}};
}

using Findings = std::vector<std::string>;

Findings findings_of(const std::vector<RankTrace>& traces) {
  Findings all;
  for (const auto& group : diagnose(traces, now))
    for (const auto& finding : group.findings) all.push_back(finding.kind + ": " + finding.text);
  return all;
}

TEST(Diagnosis, FindsNothingInRanksThatMadeTheSameCalls) {
  const Trace calls{reduced(6, State::done), reduced(7, State::running)};
  EXPECT_EQ(findings_of({trace(0, 2, calls), trace(1, 2, calls)}), Findings());
}

TEST(Diagnosis, ARankHasItsLastFinishedCallAndTheOneThatItIsIn) {
  const auto reports =
      diagnose({trace(0, 1, {reduced(6, State::done), reduced(7, State::running)})}, now);
  ASSERT_EQ(reports.size(), 1U);
  const auto& rank = reports[0].ranks.at(0);
  EXPECT_EQ(rank.finished, "all_reduce #6 sum f32 16 B");
  EXPECT_EQ(rank.current, "all_reduce #7 sum f32 16 B");
  EXPECT_EQ(rank.age_s, 3600.0);
  EXPECT_EQ(rank.state, "open");
}

TEST(Diagnosis, NamesTheFirstCollectiveInWhichRanksDiffer) {
  const Trace usual{reduced(6, State::done), reduced(7, State::running),
                    reduced(8, State::running)};
  const Trace other{reduced(6, State::done), call(7, Operation::broadcast, State::running),
                    call(8, Operation::broadcast, State::running)};
  EXPECT_EQ(findings_of({trace(2, 3, usual), trace(1, 3, other), trace(0, 3, usual)}),
            Findings{"diverged: at collective #7: ranks 0,2: all_reduce #7 sum f32 16 B; "
                     "rank 1: broadcast #7 f32 16 B root 0"});
}

TEST(Diagnosis, ComparesWhatAllRanksHaveInCommon) {
  const auto differ = [](const TraceEntry& a, const TraceEntry& b) {
    return !findings_of({trace(0, 2, {a}), trace(1, 2, {b})}).empty();
  };
  const auto a = reduced(0, State::done);
  auto b = a;
  EXPECT_FALSE(differ(a, b));
  b.bytes = 20;
  EXPECT_TRUE(differ(a, b));
  b = a;
  b.reduce = ReduceOp::Kind::max;
  EXPECT_TRUE(differ(a, b));
  b = a;
  b.dtype = DType::i32;
  EXPECT_TRUE(differ(a, b));
  b = a;
  b.name = "weights";
  EXPECT_TRUE(differ(a, b));
  const auto root = call(0, Operation::broadcast, State::done);
  auto other_root = root;
  other_root.peer = 1;
  EXPECT_TRUE(differ(root, other_root));
  b = a;
  b.async = true;
  EXPECT_FALSE(differ(a, b)) << "each rank chooses";
  EXPECT_FALSE(differ(call(0, Operation::all_to_all, State::done, 16),
                      call(0, Operation::all_to_all, State::done, 20)))
      << "rows may differ";
}

TEST(Diagnosis, NamesTheRanksThatHaveNotEnteredACall) {
  const Trace inside{reduced(6, State::done), reduced(7, State::running)};
  EXPECT_EQ(findings_of({trace(0, 4, inside), trace(1, 4, {reduced(6, State::done)}),
                         trace(2, 4, inside), trace(3, 4, {})}),
            Findings{"lags: ranks 1,3 have not entered all_reduce #7 sum f32 16 B, in which ranks "
                     "0,2 wait"});
  EXPECT_EQ(findings_of({trace(0, 2, {reduced(7, State::failed)}), trace(1, 2, {})})[0],
            "lags: rank 1 has not entered all_reduce #7 sum f32 16 B, in which rank 0 failed");
}

TEST(Diagnosis, NamesMissingRanksAlsoOfAnImpossibleSize) {
  EXPECT_EQ(findings_of({trace(1, 6, {}), trace(3, 6, {})}),
            Findings{"missing: no trace file of rank 0,2,4-5"});
  EXPECT_EQ(findings_of({trace(7, std::numeric_limits<int>::max(), {})}),
            Findings{"missing: no trace file of rank 0-6,8-2147483646"});
}

TEST(Diagnosis, NamesAProcessThatEndedWithoutClosingItsGroup) {
  auto dead = trace(0, 1, {reduced(6, State::done)});
  dead.gone = true;
  EXPECT_EQ(findings_of({dead}),
            Findings{"ended: rank 0: process 100 ended without closing the group, after "
                     "all_reduce #6 sum f32 16 B"});
  dead.file.closed = true;
  EXPECT_EQ(findings_of({dead}), Findings());
}

TEST(Diagnosis, NamesFailedAndRefusedCalls) {
  EXPECT_EQ(findings_of({trace(0, 2, {reduced(6, State::failed)}),
                         trace(1, 2, {reduced(6, State::refused)})}),
            Findings{"failed: rank 0: all_reduce #6 sum f32 16 B failed; rank 1: all_reduce #6 sum "
                     "f32 16 B was refused"});
}

TEST(Diagnosis, NamesMessagesWithoutTheOtherSide) {
  using enum Operation;
  const auto waits = [](const Trace& of_peer) {
    return findings_of(
        {trace(0, 2, {}, {message(3, recv, 1, State::running)}), trace(1, 2, {}, of_peer)});
  };
  const Findings one{
      "waits: rank 0 in recv #3 f32 16 B peer 1, entered 3600.0 s ago: rank 1 has no such send"};
  EXPECT_EQ(waits({}), one);
  EXPECT_EQ(waits({message(2, send, 0, State::done)}), one);
  EXPECT_EQ(waits({message(3, recv, 0, State::done)}), one);
  EXPECT_EQ(waits({message(3, send, 0, State::done)}), Findings());
  auto several = message(0, send, 0, State::done);
  several.ops = 2;
  EXPECT_EQ(waits({several}), Findings()) << "the others are unknown";
  auto coalesced = reduced(0, State::done);
  coalesced.ops = 2;
  EXPECT_EQ(findings_of({trace(0, 2, {coalesced}, {message(3, recv, 1, State::running)}),
                         trace(1, 2, {coalesced})}),
            Findings())
      << "a Coalesce may have sent it";
  EXPECT_EQ(waits(Trace(64, message(9, send, 0, State::done))), Findings()) << "may be forgotten";
  const auto any = message(0, recv, any_peer, State::running);
  EXPECT_EQ(findings_of({trace(0, 2, {}, {any}), trace(1, 2, {})}), Findings());
}

TEST(Diagnosis, ThePeersOfEntriesMayBeImpossible) {
  for (const int peer : {-1, 2, std::numeric_limits<int>::max()})
    EXPECT_EQ(findings_of({trace(0, 2, {}, {message(0, Operation::send, peer, State::running)}),
                           trace(1, 2, {})}),
              Findings());
}

TEST(Diagnosis, KeepsGroupsOfOneNameApartAndTheLastTraceOfARank) {
  auto old = trace(0, 1, {reduced(6, State::failed)});
  auto again = trace(0, 1, {reduced(6, State::done)});
  again.file.opened = now;
  EXPECT_EQ(diagnose({old, again}, now).size(), 1U);
  EXPECT_EQ(findings_of({old, again}), Findings());
  old.file.made = 2;
  EXPECT_EQ(diagnose({old, again}, now).size(), 2U);
}

}  // namespace
}  // namespace tutti::tool
