#include "backend/call_history.hpp"

#include <array>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace tutti::internal {
namespace {

constexpr std::array<float, 4> data{};

Op all_reduce(ReduceOp reduce = ReduceOp::sum) {
  return {.kind = Operation::all_reduce,
          .in = ConstTensorView(data.data(), DType::f32, {4}),
          .reduce = reduce};
}

/// A rank that makes calls with these fingerprints, numbered from `seq` on.
struct Rank {
  explicit Rank(int rank) : history("world", rank) {}
  void make(std::vector<std::uint64_t> fingerprints, std::uint64_t seq = 0) {
    const Op op = all_reduce();
    for (const auto fingerprint : fingerprints)
      (void)history.begin({&op, 1}, {.seq = seq++, .fingerprint = fingerprint});
  }
  CallHistory history;
};

std::optional<CallDifference> compare(const Rank& a, const Rank& b) {
  const auto sent = decode_past_calls(encode(b.history.take()));
  return difference("world", a.history.take(), sent);
}

TEST(CallHistory, EqualCallsDoNotDiffer) {
  Rank a(0);
  Rank b(1);
  EXPECT_FALSE(compare(a, b));
  for (std::uint64_t i = 0; i < 5000; ++i) {
    a.make({i * 7}, i);
    if (i % 3 == 0) {
      EXPECT_FALSE(compare(a, b));
    }
    b.make({i * 7}, i);
  }
  EXPECT_FALSE(compare(a, b));
}

TEST(CallHistory, TheFirstCallThatDiffersIsNamedWithBothSides) {
  Rank a(2);
  Rank b(0);
  a.make({1, 2, 3, 4});
  b.make({1, 9, 3});
  const auto found = compare(a, b);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->seq, 1U);
  EXPECT_FALSE(found->is_last);
  EXPECT_NE(found->text.find("rank 0: all_reduce #1 sum f32 16 B done; rank 2: all_reduce #1 sum"),
            std::string::npos)
      << found->text;
}

TEST(CallHistory, ADifferenceInTheLastCallOfBothIsThere) {
  Rank a(0);
  Rank b(1);
  a.make({1, 2});
  b.make({1, 3});
  const auto found = compare(a, b);
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->is_last);
  EXPECT_EQ(found->operation, Operation::all_reduce);
}

TEST(CallHistory, ACallThatOneRankDidNotMakeIsFoundInTheNextOne) {
  Rank a(0);
  Rank b(1);
  a.make({1, 2, 3});
  b.make({1});
  b.make({3}, 2);  // It refused call 1.
  const auto found = compare(a, b);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->seq, 1U);
  EXPECT_NE(found->text.find("rank 1: no call #1"), std::string::npos) << found->text;
  EXPECT_TRUE(compare(b, a));
}

TEST(CallHistory, ACallThatAllRanksTookBackIsForgotten) {
  Rank a(0);
  Rank b(1);
  a.make({1, 2});
  b.make({1});  // It refused call 1.
  a.history.take_back(1);
  b.history.take_back(1);  // It has nothing to take back.
  a.make({3}, 2);
  b.make({3}, 2);
  EXPECT_FALSE(compare(a, b));
  EXPECT_EQ(a.history.take().calls.size(), 2U);
}

TEST(CallHistory, AnOldDifferenceIsFoundByLaterCalls) {
  Rank a(0);
  Rank b(1);
  a.make({1});
  b.make({2});
  for (std::uint64_t i = 1; i < 3000; ++i) {
    a.make({5}, i);
    b.make({5}, i);
  }
  EXPECT_TRUE(compare(a, b));
  for (std::uint64_t i = 3000; i < 4000; ++i) a.make({5}, i);  // The last calls do not overlap.
  const auto found = compare(a, b);
  ASSERT_TRUE(found);
  EXPECT_NE(found->text.find("another call before #"), std::string::npos) << found->text;
}

TEST(CallHistory, ChangesAreToldOnce) {
  Rank a(0);
  EXPECT_FALSE(a.history.has_changed());
  a.make({1, 2});
  EXPECT_TRUE(a.history.has_changed());
  EXPECT_FALSE(a.history.has_changed());
}

TEST(CallHistory, DamagedBytesAreAnError) {
  Rank a(0);
  a.make({1, 2});
  auto bytes = encode(a.history.take());
  bytes.pop_back();
  EXPECT_THROW(decode_past_calls(bytes), Error);
}

}  // namespace
}  // namespace tutti::internal
