#include <tutti/trace.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/backend/backend.hpp>
#include <tutti/process_group.hpp>

#include "group/trace_ring.hpp"
#include "support/dtypes.hpp"

namespace tutti {
namespace {

using namespace std::chrono_literals;
using internal::TraceRing;
using State = TraceEntry::State;

Op op_of(Operation kind, std::int64_t bytes = 0) {
  static std::byte somewhere{};
  return {.kind = kind, .in = ConstTensorView(&somewhere, DType::u8, {bytes})};
}

/// The entry of a call with this number and default fields.
void begin(TraceRing& ring, std::uint64_t index, const Op& op, std::size_t ops = 1,
           bool async = false, std::string_view name = {}) {
  ring.begin(index, index, op.kind, op, ops, async, name);
}
void begin(TraceRing& ring, std::uint64_t index) {
  begin(ring, index, op_of(Operation::broadcast));
}

std::vector<TraceEntry> read(const TraceRing& ring) {
  std::vector<TraceEntry> entries;
  ring.read(entries);
  return entries;
}

TEST(TraceRing, KeepsTheLast64InTheirOrder) {
  TraceRing ring;
  for (std::uint64_t count : {1U, 63U, 64U, 65U, 200U}) {
    for (std::uint64_t i = 0; i < count; ++i) begin(ring, i);
    const auto entries = read(ring);
    ASSERT_EQ(entries.size(), std::min<std::uint64_t>(count, 64));
    for (std::size_t i = 0; i < entries.size(); ++i)
      ASSERT_EQ(entries[i].seq, count - entries.size() + i);
  }
}

TEST(TraceRing, ShowsHowACallEnded) {
  TraceRing ring;
  for (std::uint64_t i = 0; i < 4; ++i) begin(ring, i);
  ring.end(0, State::done);
  ring.end(1, State::failed);
  ring.end(2, State::refused);
  const auto entries = read(ring);
  ASSERT_EQ(entries.size(), 4U);
  EXPECT_EQ(entries[0].state, State::done);
  EXPECT_EQ(entries[1].state, State::failed);
  EXPECT_EQ(entries[2].state, State::refused);
  EXPECT_EQ(entries[3].state, State::running);
}

// Works may be collected in any order, so an old call may end after its slot has been reused.
TEST(TraceRing, TheEndOfAnOverwrittenCallIsNotThatOfItsSuccessor) {
  TraceRing ring;
  begin(ring, 0);
  begin(ring, TraceRing::length);
  ring.end(0, State::failed);
  ASSERT_EQ(read(ring).size(), 1U);
  EXPECT_EQ(read(ring)[0].state, State::running);
  ring.end(TraceRing::length, State::done);
  EXPECT_EQ(read(ring)[0].state, State::done);
}

TEST(TraceRing, TheEndOfAnOverwrittenCallDoesNotUndoThatOfItsSuccessor) {
  TraceRing ring;
  begin(ring, 0);
  begin(ring, TraceRing::length);
  ring.end(TraceRing::length, State::done);
  ring.end(0, State::failed);
  EXPECT_EQ(read(ring)[0].state, State::done);
}

TEST(TraceRing, KeepsEveryOperationDtypeAndReduceOp) {
  for (int o = 0; o < operation_count; ++o)
    for (const DType dtype : test::all_dtypes)
      for (int k = 0; k < reduce_op_count; ++k) {
        TraceRing ring;
        Op op = op_of(static_cast<Operation>(o));
        op.in.dtype = dtype;
        op.reduce.kind = static_cast<ReduceOp::Kind>(k);
        begin(ring, 0, op);
        const auto entries = read(ring);
        ASSERT_EQ(entries.size(), 1U);
        ASSERT_EQ(entries[0].operation, op.kind);
        ASSERT_EQ(entries[0].dtype, dtype);
        ASSERT_EQ(entries[0].reduce, op.reduce.kind);
        ASSERT_EQ(entries[0].ops, 1U);
        ASSERT_FALSE(entries[0].async);
      }
}

TEST(TraceRing, BytesAreThoseOfInOrOfOutWhereThereIsNoIn) {
  float value = 0;
  TraceRing ring;
  begin(ring, 0,
        {.kind = Operation::all_gather,
         .in = ConstTensorView(&value, DType::f32, {3}),
         .out = TensorView(&value, DType::f32, {12})});
  begin(ring, 1, {.kind = Operation::recv, .out = TensorView(&value, DType::f64, {5})});
  begin(ring, 2, {.kind = Operation::barrier});
  begin(ring, 3,
        {.kind = Operation::send,
         .in = ConstTensorView(&value, DType::f64, {std::int64_t{1} << 40})});
  const auto entries = read(ring);
  EXPECT_EQ(entries[0].bytes, 12);
  EXPECT_EQ(entries[1].bytes, 40);
  EXPECT_EQ(entries[1].dtype, DType::f64);
  EXPECT_EQ(entries[2].bytes, 0);
  EXPECT_EQ(entries[3].bytes, std::int64_t{1} << 43);
}

TEST(TraceRing, PeerIsTheRootOrThePeerOrNone) {
  TraceRing ring;
  Op op = op_of(Operation::broadcast);
  begin(ring, 0, op);
  op.root = 2;
  begin(ring, 1, op);
  op.root = -1;
  op.peer = 1'000'000;
  begin(ring, 2, op);
  const auto entries = read(ring);
  EXPECT_EQ(entries[0].peer, -1);
  EXPECT_EQ(entries[1].peer, 2);
  EXPECT_EQ(entries[2].peer, 1'000'000);
}

TEST(TraceRing, KeepsTheFirst16BytesOfAName) {
  TraceRing ring;
  const Op op = op_of(Operation::broadcast);
  begin(ring, 0, op, 1, false, "");
  begin(ring, 1, op, 1, false, "short");
  begin(ring, 2, op, 1, false, "exactly 16 bytes");
  begin(ring, 3, op, 1, false, "longer than 16 bytes");
  begin(ring, 4, op, 1, false, "8 bytes.");
  const auto entries = read(ring);
  EXPECT_EQ(entries[0].name, "");
  EXPECT_EQ(entries[1].name, "short");
  EXPECT_EQ(entries[2].name, "exactly 16 bytes");
  EXPECT_EQ(entries[3].name, "longer than 16 b");
  EXPECT_EQ(entries[4].name, "8 bytes.");
}

TEST(TraceRing, ANameIsGoneWithItsCall) {
  TraceRing ring;
  begin(ring, 0, op_of(Operation::broadcast), 1, false, "of the first one");
  begin(ring, TraceRing::length, op_of(Operation::broadcast), 1, false, "");
  EXPECT_EQ(read(ring).at(0).name, "");
}

TEST(TraceRing, KeepsAsyncAndTheNumberOfOperations) {
  TraceRing ring;
  const Op op = op_of(Operation::broadcast);
  begin(ring, 0, op, 3, true);
  begin(ring, 1, op, 65'535, false);
  const auto entries = read(ring);
  EXPECT_TRUE(entries[0].async);
  EXPECT_EQ(entries[0].ops, 3U);
  EXPECT_FALSE(entries[1].async);
  EXPECT_EQ(entries[1].ops, 65'535U);
}

// Every field is a function of the number, so that a mixed entry is detected.
Op numbered(std::uint64_t index) {
  static std::byte somewhere{};
  Op op{.kind = static_cast<Operation>(index % operation_count),
        .in = ConstTensorView(&somewhere, static_cast<DType>(index % dtype_count),
                              {static_cast<std::int64_t>(index * 3)}),
        .peer = static_cast<int>(index % 1000)};
  op.reduce.kind = static_cast<ReduceOp::Kind>(index % reduce_op_count);
  return op;
}
std::string numbered_name(std::uint64_t index) {
  const auto text = std::to_string(index);
  return text + "/" + text;
}
void expect_of_one_call(const TraceEntry& entry) {
  const Op op = numbered(entry.seq);
  ASSERT_EQ(entry.operation, op.kind) << entry.seq;
  ASSERT_EQ(entry.dtype, op.in.dtype) << entry.seq;
  ASSERT_EQ(entry.reduce, op.reduce.kind) << entry.seq;
  ASSERT_EQ(entry.peer, op.peer) << entry.seq;
  if (op.kind != Operation::barrier) {
    ASSERT_EQ(entry.bytes, static_cast<std::int64_t>(op.in.bytes())) << entry.seq;
  }
  ASSERT_EQ(entry.name, numbered_name(entry.seq).substr(0, 16)) << entry.seq;
}

TEST(TraceRing, AReaderSeesWholeEntriesInOrderWhileCallsAreWritten) {
  TraceRing ring;
  std::atomic<std::uint64_t> written = 0;
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (std::uint64_t i = 0; !stop; ++i) {
      begin(ring, i, numbered(i), 1, false, numbered_name(i));
      ring.end(i, State::done);
      written = i + 1;
    }
  });
  std::size_t seen = 0;
  const auto until = Deadline(300ms);
  while (!until.expired()) {
    const std::uint64_t least = written;
    const auto entries = read(ring);
    ASSERT_LE(entries.size(), TraceRing::length);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      expect_of_one_call(entries[i]);
      ASSERT_TRUE(i == 0 || entries[i - 1].seq < entries[i].seq) << "oldest first";
      if (HasFatalFailure()) break;
    }
    if (HasFatalFailure()) break;
    ASSERT_TRUE(entries.empty() || entries.back().seq + TraceRing::length >= least);
    seen += entries.size();
  }
  stop = true;
  writer.join();
  EXPECT_GT(seen, 0U);
  const auto entries = read(ring);
  EXPECT_EQ(entries.size(), std::min<std::uint64_t>(written, TraceRing::length));
  for (const auto& entry : entries) EXPECT_EQ(entry.state, State::done);
}

// At most as many threads as slots are in begin() at once: each takes a number and writes it before
// its next. Two writers share a slot only if one sleeps for 64 calls of the others.
TEST(TraceRing, SeveralWritersKeepTheirOwnEntries) {
  TraceRing ring;
  std::atomic<std::uint64_t> next = 0;
  for (int round = 0; round < 200; ++round) {
    std::array<std::thread, 4> writers;
    for (auto& writer : writers)
      writer = std::thread([&] {
        for (int i = 0; i < 16; ++i) {
          const auto index = next++;
          begin(ring, index, numbered(index), 1, false, numbered_name(index));
          ring.end(index, State::done);
        }
      });
    while (next < static_cast<std::uint64_t>(round + 1) * 64)
      for (const auto& entry : read(ring)) {
        expect_of_one_call(entry);
        if (HasFatalFailure()) break;
      }
    for (auto& writer : writers) writer.join();
    const auto entries = read(ring);
    ASSERT_EQ(entries.size(), 64U);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      ASSERT_EQ(entries[i].seq, next - 64 + i);
      ASSERT_EQ(entries[i].state, State::done);
      expect_of_one_call(entries[i]);
    }
  }
}

// Entries in words.

TEST(TraceEntry, TextSaysWhatTheCallWas) {
  TraceEntry entry{.seq = 17,
                   .operation = Operation::all_reduce,
                   .dtype = DType::f32,
                   .bytes = 4096,
                   .state = State::done};
  EXPECT_EQ(to_string(entry), "all_reduce #17 sum f32 4096 B done");
  entry.async = true;
  entry.name = "grad";
  entry.state = State::running;
  entry.reduce = ReduceOp::Kind::premul_sum;
  EXPECT_EQ(to_string(entry), "all_reduce #17 premul_sum f32 4096 B 'grad' async running");
  entry.ops = 3;
  entry.state = State::failed;
  EXPECT_EQ(to_string(entry),
            "all_reduce #17 premul_sum f32 4096 B (first of 3) 'grad' async failed");
}

TEST(TraceEntry, TextHasTheRootOrThePeer) {
  EXPECT_EQ(to_string(TraceEntry{.seq = 1,
                                 .operation = Operation::broadcast,
                                 .dtype = DType::i64,
                                 .bytes = 8,
                                 .peer = 0,
                                 .state = State::refused}),
            "broadcast #1 i64 8 B root 0 refused");
  EXPECT_EQ(to_string(TraceEntry{.seq = 2,
                                 .operation = Operation::recv,
                                 .dtype = DType::u8,
                                 .bytes = 3,
                                 .peer = 5,
                                 .state = State::done}),
            "recv #2 u8 3 B peer 5 done");
  EXPECT_EQ(to_string(TraceEntry{.operation = Operation::barrier, .state = State::done}),
            "barrier #0 done");
}

// The trace of a group.

GroupOptions alone() {
  return {.backend = "local", .checked = false, .logger = [](LogLevel, std::string_view) {}};
}

TEST(Trace, WorksCollectedInReverseAreAllDone) {
  auto group = ProcessGroup::create(alone());
  std::vector<Work> works;
  for (int i = 0; i < 150; ++i) works.push_back(group.barrier_async());
  for (auto work = works.rbegin(); work != works.rend(); ++work) work->wait();
  const auto trace = group.trace();
  ASSERT_EQ(trace.size(), 64U);
  for (std::size_t i = 0; i < trace.size(); ++i)
    EXPECT_EQ(to_string(trace[i]), "barrier #" + std::to_string(86 + i) + " async done");
}

}  // namespace
}  // namespace tutti
