#include "backend/record.hpp"

#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "support/errors.hpp"

namespace tutti::internal {
namespace {

float somewhere[64];

TensorView array(const Shape& shape, DType dtype = DType::f32) {
  return {somewhere, dtype, shape};
}

Op all_reduce(const Shape& shape = {4}, ReduceOp reduce = ReduceOp::sum) {
  return {.kind = Operation::all_reduce, .in = array(shape), .out = array(shape), .reduce = reduce};
}

Record record(const Op& op, std::uint64_t fingerprint, const Call& call = {}) {
  Call signed_call = call;
  signed_call.fingerprint = fingerprint;
  return Record::of({&op, 1}, signed_call);
}

// Descriptions in words.

TEST(Describe, SaysWhatHasToBeEqual) {
  EXPECT_EQ(describe(all_reduce()), "all_reduce sum f32 [4]");
  EXPECT_EQ(describe(all_reduce({2, 3}, ReduceOp::premul(0.5))), "all_reduce premul_sum f32 [2, 3]")
      << "without the scale, which may differ";
  EXPECT_EQ(describe({.kind = Operation::barrier}), "barrier");
  EXPECT_EQ(describe({.kind = Operation::broadcast, .in = array({4}, DType::i64), .root = 2}),
            "broadcast i64 [4] root 2");
  EXPECT_EQ(
      describe({.kind = Operation::reduce, .in = array({4}), .reduce = ReduceOp::max, .root = 0}),
      "reduce max f32 [4] root 0");
}

TEST(Describe, ShowsRowsAsTheyWereGiven) {
  const std::vector<std::int64_t> rows{1, 0, 5};
  Op op{.kind = Operation::all_gather, .in = array({1, 3}), .out = array({6, 3}), .rows = rows};
  EXPECT_EQ(describe(op), "all_gather f32 [1, 3] rows {1, 0, 5}");
  op.rows = Rows(2);
  EXPECT_EQ(describe(op), "all_gather f32 [1, 3] rows 2 each");
  const std::vector<std::int64_t> many(100, 7);
  op.rows = many;
  EXPECT_EQ(describe(op), "all_gather f32 [1, 3] rows {7, 7, 7, 7, 7, 7, 7, 7, ...}");
  const std::vector<std::int64_t> eight(8, 7);
  op.rows = eight;
  EXPECT_EQ(describe(op), "all_gather f32 [1, 3] rows {7, 7, 7, 7, 7, 7, 7, 7}");
}

TEST(Describe, ShowsThePartOfARankWhoseWholeIsElsewhere) {
  EXPECT_EQ(describe({.kind = Operation::scatter,
                      .out = array({2, 3}, DType::i32),
                      .rows = Rows(2),
                      .root = 1}),
            "scatter i32 [2, 3] rows 2 each root 1");
}

TEST(Describe, PointToPointHasItsPeerAndTag) {
  EXPECT_EQ(describe({.kind = Operation::send, .in = array({4}), .peer = 2, .tag = 7}),
            "send f32 [4] to 2 tag 7");
  EXPECT_EQ(describe({.kind = Operation::recv, .out = array({5}), .peer = 0, .tag = 7}),
            "recv f32 [5] from 0 tag 7");
}

TEST(Describe, ALaunchHasItsOptionsAndItsFirstOperations) {
  const std::vector<Op> ops{all_reduce(), {.kind = Operation::barrier}, all_reduce({5})};
  const Call named{.order_fixed = true, .name = "grad"};
  EXPECT_EQ(describe(std::span(ops).first(1), named),
            "all_reduce sum f32 [4] order_fixed name 'grad'");
  EXPECT_EQ(describe(std::span(ops).first(2), {}), "2 coalesced: all_reduce sum f32 [4]; barrier");
  EXPECT_EQ(describe(ops, {}), "3 coalesced: all_reduce sum f32 [4]; barrier; ...");
}

TEST(OperationOf, IsTheFirstThatAllRanksHave) {
  const std::vector<Op> ops{{.kind = Operation::send}, {.kind = Operation::barrier}, all_reduce()};
  EXPECT_EQ(operation_of(ops), "barrier");
  EXPECT_EQ(operation_of(std::span(ops).first(1)), "send");
  EXPECT_EQ(operation_of({}), "coalesced call");
}

TEST(ListRanks, SeparatesThemWithSpaces) {
  EXPECT_EQ(list_ranks(std::vector{0}), "0");
  EXPECT_EQ(list_ranks(std::vector{0, 2, 3}), "0 2 3");
}

TEST(CallError, HasThePlaceOfTheCall) {
  const Op op = all_reduce();
  const Error error =
      call_error(Errc::timeout, "world", {&op, 1}, {.seq = 17}, 2, "rank 2 is late");
  EXPECT_EQ(error.code(), Errc::timeout);
  EXPECT_EQ(error.where().group, "world");
  EXPECT_EQ(error.where().operation, "all_reduce");
  EXPECT_EQ(error.where().seq, 17);
  EXPECT_EQ(error.where().rank, 2);
  const Op send{.kind = Operation::send, .peer = 1, .seq = 5};
  EXPECT_EQ(call_error(Errc::timeout, "world", {&send, 1}, {.seq = 99}, 1, "x").where().seq, 5)
      << "its number in the pair";
}

// Encoding.

static_assert(std::is_trivially_copyable_v<Record>);
static_assert(sizeof(Record) == 256);

TEST(Record, HoldsTheCallAndItsWords) {
  const Op op = all_reduce();
  const Record made = Record::of({&op, 1}, {.seq = 17, .fingerprint = 42});
  EXPECT_EQ(made.format, Record::version);
  EXPECT_EQ(made.refused, 0U);
  EXPECT_EQ(made.seq, 17U);
  EXPECT_EQ(made.fingerprint, 42U);
  EXPECT_EQ(made.view(), "all_reduce sum f32 [4]");
}

TEST(Record, LongWordsAreCutAndStillEnd) {
  const Op op = all_reduce();
  const std::string name(500, 'n');
  const Record made = Record::of({&op, 1}, {.name = name});
  EXPECT_EQ(made.view().size(), made.text.size() - 1);
  EXPECT_TRUE(made.view().starts_with("all_reduce sum f32 [4] name 'nnn"));
  Record full;
  full.text.fill('x');
  EXPECT_EQ(full.view().size(), full.text.size()) << "one of a broken peer";
}

TEST(Record, ARefusalSaysWhy) {
  const Op op = all_reduce();
  const Record made = Record::refusal({&op, 1}, {.seq = 3, .fingerprint = 42},
                                      Error(Errc::invalid_argument, "in is null"));
  EXPECT_EQ(made.refused, 1U);
  EXPECT_EQ(made.seq, 3U);
  EXPECT_EQ(made.view(), "all_reduce #3: in is null");
}

// Comparing.

class Compare : public testing::Test {
 protected:
  std::optional<Error> compare(const std::vector<Record>& records) {
    return internal::compare("world", {&mine, 1}, {.seq = 17}, records);
  }
  const Op mine = all_reduce();
};

TEST_F(Compare, EqualCallsAgree) {
  const Record a = record(mine, 1, {.seq = 17});
  EXPECT_FALSE(compare({a}).has_value());
  EXPECT_FALSE(compare({a, a, a}).has_value());
}

TEST_F(Compare, WordsAreNotWhatIsCompared) {
  Record a = record(mine, 1, {.seq = 17});
  Record b = record(all_reduce({4}, ReduceOp::premul(3)), 1, {.seq = 17});
  EXPECT_FALSE(compare({a, b}).has_value());
}

TEST_F(Compare, ADifferenceNamesBothSidesAndTheirRanks) {
  const Record a = record(all_reduce({521}), 1, {.seq = 17});
  const Record b =
      record({.kind = Operation::broadcast, .in = array({734}), .root = 0}, 2, {.seq = 17});
  const auto error = compare({a, b, a, a});
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), Errc::mismatch);
  EXPECT_EQ(error->where().group, "world");
  EXPECT_EQ(error->where().operation, "all_reduce");
  EXPECT_EQ(error->where().seq, 17);
  EXPECT_EQ(error->where().rank, 1) << "the odd one";
  for (const auto* text :
       {"ranks 0 2 3: all_reduce sum f32 [521] #17", "rank 1: broadcast f32 [734] root 0 #17"})
    EXPECT_NE(error->message().find(text), std::string::npos) << error->message();
}

TEST_F(Compare, OfTwoNeitherIsTheOddOne) {
  const Record a = record(all_reduce({1}), 1, {.seq = 17});
  const Record b = record(all_reduce({2}), 2, {.seq = 17});
  EXPECT_EQ(compare({a, b})->where().rank, -1);
  EXPECT_EQ(compare({a, b, b, a})->where().rank, -1);
}

TEST_F(Compare, ManySidesAreAllNamed) {
  std::vector<Record> records;
  for (std::int64_t n = 1; n <= 4; ++n)
    records.push_back(record(all_reduce({n}), static_cast<std::uint64_t>(n), {.seq = 17}));
  const auto error = compare(records);
  ASSERT_TRUE(error.has_value());
  for (const auto* text : {"rank 0: all_reduce sum f32 [1]", "rank 1: all_reduce sum f32 [2]",
                           "rank 2: all_reduce sum f32 [3]", "rank 3: all_reduce sum f32 [4]"})
    EXPECT_NE(error->message().find(text), std::string::npos) << error->message();
}

TEST_F(Compare, EveryRankThrowsTheSameText) {
  const Record a = record(all_reduce({1}), 1, {.seq = 17});
  const Record b = record(all_reduce({2}), 2, {.seq = 17});
  const Op theirs = all_reduce({2});
  const auto on_0 = internal::compare("world", {&mine, 1}, {.seq = 17}, std::vector{a, b});
  const auto on_1 = internal::compare("world", {&theirs, 1}, {.seq = 17}, std::vector{a, b});
  EXPECT_STREQ(on_0->what(), on_1->what());
}

TEST_F(Compare, AnotherNumberOrFormatIsADifference) {
  const Record a = record(mine, 1, {.seq = 17});
  Record other = record(mine, 1, {.seq = 18});
  EXPECT_EQ(compare({a, other})->code(), Errc::mismatch);
  other = a;
  other.format = Record::version + 1;
  EXPECT_EQ(compare({a, other})->code(), Errc::mismatch);
}

TEST_F(Compare, ARefusalCountsBeforeDifferences) {
  const Record a = record(all_reduce({1}), 1, {.seq = 17});
  const Record b = record(all_reduce({2}), 2, {.seq = 17});
  const Record refusal =
      Record::refusal({&mine, 1}, {.seq = 17}, Error(Errc::invalid_argument, "in is null"));
  const auto error = compare({a, b, refusal});
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), Errc::mismatch);
  EXPECT_EQ(error->where().rank, 2);
  EXPECT_EQ(error->message(), "rank 2 refused all_reduce #17: in is null");
}

Reader reader_of(const Writer& out) {
  return {out.bytes(), Errc::mismatch, "a peer's record"};
}

TEST(RecordBytes, ARecordSurvivesWriteAndRead) {
  const Op op = all_reduce({3});
  for (const auto& sent :
       {record(op, 7, {.seq = 17}),
        Record::refusal({&op, 1}, {.seq = 3},
                        Error(Errc::invalid_argument, std::string(1000, 'x')))}) {
    Writer out;
    write(out, sent);
    auto in = reader_of(out);
    const Record got = read_record(in);
    in.end();
    EXPECT_EQ(got.seq, sent.seq);
    EXPECT_EQ(got.fingerprint, sent.fingerprint);
    EXPECT_EQ(got.refused, sent.refused);
    EXPECT_EQ(got.view(), sent.view());
  }
}

TEST(RecordBytes, WhatIsNoRecordIsAnError) {
  Writer out;
  write(out, record(all_reduce({3}), 7, {.seq = 17}));
  for (std::size_t n = 0; n < out.bytes().size(); ++n) {
    Reader in(out.bytes().first(n), Errc::mismatch, "a peer's record");
    EXPECT_THROW((void)read_record(in), Error) << n;
  }
  Writer newer;
  newer.u32(Record::version + 1);
  auto in = reader_of(newer);
  test::expect_error(Errc::mismatch, {"version 2", "this rank's has 1"},
                     [&] { (void)read_record(in); });
  // A text that is too long is cut off.
  Writer longer;
  longer.u32(Record::version).u32(0).u64(1).u64(2).text(std::string(5000, 'y'));
  auto long_in = reader_of(longer);
  EXPECT_EQ(read_record(long_in).view().size(), Record{}.text.size() - 1);
}

}  // namespace
}  // namespace tutti::internal
