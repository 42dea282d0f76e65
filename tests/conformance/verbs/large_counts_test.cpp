// Counts beyond 2^31 elements. Slow, and needs 9 GB of memory: a program of its own in the suite
// "slow".

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include <gtest/gtest.h>

#include "support/ranks.hpp"

namespace tutti::test {
namespace {

constexpr std::int64_t beyond = (std::int64_t{1} << 31) + 17;

/// Element `i` of rank `rank`; its period is no multiple of a power of two.
std::uint8_t at(int rank, std::int64_t i) {
  return static_cast<std::uint8_t>((i % 251) + rank);
}

std::vector<std::uint8_t> filled(int rank, std::int64_t n) {
  std::vector<std::uint8_t> data(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) data[static_cast<std::size_t>(i)] = at(rank, i);
  return data;
}

class LargeCounts : public testing::TestWithParam<World> {
 protected:
  static void on_patient_ranks(const std::function<void(ProcessGroup&)>& body) {
    on_fresh_ranks(GetParam(), body, {.run = 600s});
  }
};

TEST_P(LargeCounts, AllReduceIsRightInEveryElement) {
  on_patient_ranks([](ProcessGroup& group) {
    auto data = filled(group.rank(), beyond);
    group.all_reduce(data, ReduceOp::sum, {.deadline = 300s});
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < beyond; ++i)
      wrong += data[static_cast<std::size_t>(i)] != static_cast<std::uint8_t>(at(0, i) + at(1, i));
    EXPECT_EQ(wrong, 0);
  });
}

TEST_P(LargeCounts, AllGatherPutsTheSecondRankBehindTwoToTheThirtyOne) {
  on_patient_ranks([](ProcessGroup& group) {
    const std::vector<std::int64_t> rows{beyond, 3};
    const auto mine = filled(group.rank(), rows[static_cast<std::size_t>(group.rank())]);
    std::vector<std::uint8_t> all(static_cast<std::size_t>(beyond + 3));
    group.all_gather(mine, all, rows, {.deadline = 300s});
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < beyond; ++i) wrong += all[static_cast<std::size_t>(i)] != at(0, i);
    for (std::int64_t i = 0; i < 3; ++i)
      wrong += all[static_cast<std::size_t>(beyond + i)] != at(1, i);
    EXPECT_EQ(wrong, 0);
  });
}

TEST_P(LargeCounts, ReduceScatterFindsTheBlockBehindTwoToTheThirtyOne) {
  on_patient_ranks([](ProcessGroup& group) {
    const std::vector<std::int64_t> rows{beyond, 3};
    const auto in = filled(group.rank(), beyond + 3);
    const auto first = group.rank() == 0 ? 0 : beyond;
    std::vector<std::uint8_t> out(
        static_cast<std::size_t>(rows[static_cast<std::size_t>(group.rank())]));
    group.reduce_scatter(in, out, rows, ReduceOp::max, {.deadline = 300s});
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < std::ssize(out); ++i)
      wrong += out[static_cast<std::size_t>(i)] != std::max(at(0, first + i), at(1, first + i));
    EXPECT_EQ(wrong, 0);
  });
}

TEST_P(LargeCounts, SendAndReceiveCarryMoreThanTwoToTheThirtyOneBytes) {
  on_patient_ranks([](ProcessGroup& group) {
    if (group.rank() == 0) {
      const auto data = filled(0, beyond);
      group.send(data, 1, 0, {.deadline = 300s});
      return;
    }
    std::vector<std::uint8_t> data(static_cast<std::size_t>(beyond));
    group.recv(data, 0, 0, {.deadline = 300s});
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < beyond; ++i)
      wrong += data[static_cast<std::size_t>(i)] != at(0, i);
    EXPECT_EQ(wrong, 0);
  });
}

std::vector<World> two_ranks() {
  std::vector<World> found;
  for (const auto& world : worlds({2}))
    if (!world.checked) found.push_back(world);
  return found;
}
INSTANTIATE_TEST_SUITE_P(Worlds, LargeCounts, testing::ValuesIn(two_ranks()), CaseName());

}  // namespace
}  // namespace tutti::test
