// The entry of threads to a call beside failures: no rank is more than a call ahead.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <random>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/process_group.hpp>

#include "support/ranks.hpp"

namespace tutti::test {
namespace {

constexpr int size = 3;

std::vector<ProcessGroup> make_groups(std::chrono::nanoseconds timeout = group_timeout) {
  const auto store = make_memory_store();
  std::vector<GroupOptions> options;
  for (int rank = 0; rank < size; ++rank)
    options.push_back(
        {.backend = "local", .store = store, .rank = rank, .size = size, .timeout = timeout});
  return ProcessGroup::create_all(options);
}

std::size_t count_of(int call) {
  return std::array<std::size_t, 3>{2, 64, 2000}[static_cast<std::size_t>(call % 3)];
}

/// An all_reduce of data that is in the entry (2 numbers), in slots (64) or in place (2000).
void check_call(ProcessGroup& group, int call) {
  std::vector<std::int32_t> data(count_of(call), 1 << group.rank());
  group.all_reduce(data);
  for (const auto x : data) ASSERT_EQ(x, 7) << "call " << call;
}

/// A rank ends call k+1 only after all have entered it, so the ranks end with k or k+1 calls.
void expect_ended_together(const std::vector<int>& ended) {
  const auto [least, most] = std::ranges::minmax(ended);
  EXPECT_LE(most - least, 1);
}

/// The calls that ended on a rank before the group broke.
int calls_until_broken(ProcessGroup& group) {
  for (int call = 0;; ++call) try {
      check_call(group, call);
    } catch (const Error&) {
      return call;
    }
}

TEST(LocalEntry, AnAbortAtAnyMomentEndsAllRanksWithinACall) {
  std::minstd_rand random;
  for (int i = 0; i < 100; ++i) {
    auto groups = make_groups();
    std::vector<int> ended(size);
    const std::chrono::microseconds moment(random() % 400);
    on_threads(size + 1, [&](int rank) {
      if (rank < size) {
        ended[static_cast<std::size_t>(rank)] =
            calls_until_broken(groups[static_cast<std::size_t>(rank)]);
        return;
      }
      std::this_thread::sleep_for(moment);
      groups[random() % size].abort("now");
    });
    expect_ended_together(ended);
  }
}

TEST(LocalEntry, ACallThatEndsBesideADeadlineIsRight) {
  constexpr std::chrono::microseconds timeout(500);
  std::minstd_rand random;
  int in_time = 0;
  for (int i = 0; i < 100; ++i) {
    auto groups = make_groups();
    std::vector<int> ended(size);
    const auto late =
        timeout - std::chrono::microseconds(250) + std::chrono::microseconds(random() % 500);
    on_threads(size, [&](int rank) {
      auto& group = groups[static_cast<std::size_t>(rank)];
      if (rank == 2) std::this_thread::sleep_for(late);
      std::vector<std::int32_t> data(count_of(i), 1);
      try {
        group.all_reduce(data, ReduceOp::sum, {.timeout = timeout});
        ended[static_cast<std::size_t>(rank)] = 1;
        for (const auto x : data) ASSERT_EQ(x, size);
      } catch (const Error& error) {
        EXPECT_TRUE(error.code() == Errc::timeout || error.code() == Errc::aborted) << error.what();
      }
    });
    // The next call fails on all ranks if one has failed.
    on_threads(size, [&](int rank) {
      if (std::ranges::count(ended, 1) == size) return;
      EXPECT_THROW(check_call(groups[static_cast<std::size_t>(rank)], i), Error);
    });
    in_time += ended[0];
  }
  RecordProperty("in_time", in_time);
}

TEST(LocalEntry, CallsBetweenRefusedOnesAreRight) {
  auto groups = make_groups();
  on_threads(size, [&](int rank) {
    auto& group = groups[static_cast<std::size_t>(rank)];
    std::minstd_rand random;  // The same numbers on all ranks.
    for (int call = 0; call < 500; ++call) {
      const auto refusing = random() % 16;  // Bit r: rank r refuses the call. 0 and 8: no rank.
      std::vector<std::int32_t> data(count_of(call), 1 << rank);
      const bool refuses = (refusing >> rank & 1) != 0;
      try {
        if (refuses)
          group.all_reduce(TensorView(nullptr, DType::i32, Shape{2}));
        else
          group.all_reduce(data);
        ASSERT_EQ(refusing % 8, 0U) << "call " << call;
        ASSERT_EQ(data[0], 7) << "call " << call;
      } catch (const Error& error) {
        ASSERT_NE(refusing % 8, 0U) << "call " << call << ": " << error.what();
        ASSERT_EQ(error.code(), refuses ? Errc::invalid_argument : Errc::mismatch) << error.what();
      }
    }
  });
}

}  // namespace
}  // namespace tutti::test
