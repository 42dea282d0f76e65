#include "overhead.hpp"

#include <array>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "backends/nccl/double/bare_rank.hpp"
#include "support/ranks.hpp"

// The comparison with a bare loop, over the double of NCCL and CUDA. Tests that both are counted
// and checked alike, and the text of the table. The times are invented.

namespace tutti::gpu {
namespace {

namespace test_double = tutti::test::nccl_double;

OverheadRow row_of(double bare_us, double ours_us, double blocking_us, std::size_t wrong = 0) {
  return {.operation = "all_reduce",
          .bytes = 3 << 20,
          .calls = 8,
          .ours = {ours_us, 6.5},
          .bare = {bare_us, 5},
          .blocking = {blocking_us, 4},
          .wrong = wrong};
}

TEST(Overhead, AMicrosecondOrTwoPercentAreAllowedBesideBothLoops) {
  EXPECT_TRUE(passes(row_of(10, 11, 10)));
  EXPECT_FALSE(passes(row_of(10, 11.01, 11)));
  EXPECT_FALSE(passes(row_of(11, 11.01, 10)));
  EXPECT_TRUE(passes(row_of(1000, 1020, 1000)));
  EXPECT_FALSE(passes(row_of(1000, 1021, 1021)));
  EXPECT_FALSE(passes(row_of(1021, 1021, 1000)));
  EXPECT_TRUE(passes(row_of(1000, 900, 1000)));
  EXPECT_FALSE(passes(row_of(10, 10, 10, 1)));
}

TEST(Overhead, TheMedianOfAnEvenNumberLiesBetweenTheMiddleTwo) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 100}), 3);
}

TEST(Overhead, EachRowSaysWhetherItPassesAndBesideWhat) {
  std::string table = markdown_head();
  for (const auto& row :
       {row_of(10, 10.5, 9.75), row_of(10, 12, 10), row_of(10, 10.5, 8), row_of(10, 10, 10, 7)})
    table += to_markdown(row);
  EXPECT_NE(table.find("| all_reduce | 3 MiB | 10.50 | 10.00 | +0.50 | 1.050 | 9.75 | +0.75 | "
                       "1.077 | 6.50 | 5.00 | 4.00 | ok |\n"),
            std::string::npos)
      << table;
  EXPECT_NE(table.find("| +2.00 | 1.200 | 6.50 | 5.00 | 4.00 | SLOW |\n"), std::string::npos)
      << table;
  EXPECT_NE(table.find("| +2.50 | 1.312 | 6.50 | 5.00 | 4.00 | SLOW beside blocking |\n"),
            std::string::npos)
      << table;
  EXPECT_NE(table.find("| WRONG: 7 elements |\n"), std::string::npos) << table;
}

TEST(Overhead, TheLargestSizeFitsTheDevice) {
  const std::size_t gib = std::size_t{1} << 30;
  const auto sizes = overhead_sizes(70 * gib, 2, false);
  EXPECT_EQ(sizes.front(), 8U);
  EXPECT_EQ(sizes[1], 64U);
  EXPECT_EQ(sizes.back(), gib);
  EXPECT_EQ(overhead_sizes(70 * gib, 2, true)[1], 16U);
  for (const bool full : {false, true}) EXPECT_EQ(overhead_sizes(gib, 2, full).back(), gib / 8);
  EXPECT_EQ(overhead_sizes(0, 4, false), std::vector<std::size_t>{8});
}

class OverDouble : public test_double::Double {
 protected:
  /// The rows of every rank. A call of ours takes 10.4 us, one of the bare loops 10 us, or 9.6 us
  /// where the communicator blocks.
  static std::vector<std::vector<OverheadRow>> measure(int size, backend::nccl::Apis apis,
                                                       const OverheadOptions& options) {
    const auto store = make_memory_store();
    std::vector<std::vector<OverheadRow>> rows(static_cast<std::size_t>(size));
    test::on_threads(size, [&](int rank) {
      std::size_t blocks = 0;
      Rank self{.rank = rank, .size = size, .device = rank, .store = store, .apis = apis};
      self.elapsed_us = [&](cudaEvent_t, cudaEvent_t to) {
        while (test_double::cuda().event_query(to) == cudaErrorNotReady) {
          (void)test_double::cuda().get_last_error();
          std::this_thread::yield();
        }
        // One of each to warm up; then in this order, and with the last two of them exchanged.
        const double ours = 20.8;
        const double bare = 20;
        const double blocking = 19.2;
        const std::array order{1e3, 1e3, 1e3, ours, bare, blocking, ours, blocking, bare};
        return order[blocks++ % order.size()];
      };
      std::size_t done = 0;
      auto& mine = rows[static_cast<std::size_t>(rank)];
      mine = measure_overhead(self, options, [&](const OverheadRow&) { ++done; });
      EXPECT_EQ(done, mine.size());
    });
    return rows;
  }
};

const OverheadOptions small{.sizes = {8, 4000}, .rounds = 2, .most_calls = 2};

TEST_F(OverDouble, AllThreeAreRightAndMeasuredInTurns) {
  for (const int size : {1, 2, 3}) {
    const int before = test_double::calls("ncclAllReduce");
    for (const auto& rows : measure(size, test_double::apis(), small)) {
      ASSERT_EQ(rows.size(), 8U);
      for (const OverheadRow& row : rows) {
        EXPECT_EQ(row.wrong, 0U) << row.operation << " " << row.bytes;
        EXPECT_EQ(row.calls, 2);
        EXPECT_DOUBLE_EQ(row.ours.device_us, 10.4) << row.operation << " " << row.bytes;
        EXPECT_DOUBLE_EQ(row.bare.device_us, 10) << row.operation << " " << row.bytes;
        EXPECT_DOUBLE_EQ(row.blocking.device_us, 9.6) << row.operation << " " << row.bytes;
        EXPECT_GT(row.bare.host_us, 0);
        EXPECT_GT(row.blocking.host_us, 0);
        EXPECT_TRUE(passes(row));
      }
      EXPECT_EQ(rows[1].bytes, 4000U);
      EXPECT_EQ(rows[2].operation, "all_gather");
      EXPECT_EQ(rows[2].bytes, std::max<std::size_t>(8, 4 * static_cast<std::size_t>(size)));
    }
    // Per rank and size 7 calls of each, beside those with which the group begins and ends. A group
    // of one rank copies without NCCL.
    const int loops = size == 1 ? 2 : 3;
    EXPECT_GE(test_double::calls("ncclAllReduce") - before, size * 2 * loops * 7);
  }
}

TEST_F(OverDouble, OneLoopHasACommunicatorThatBlocksAndTheOtherOneOfOurSettings) {
  static std::array<std::atomic<int>, 2> made;
  for (auto& count : made) count = 0;
  backend::nccl::NcclApi counting = *test_double::apis().nccl;
  counting.comm_init_rank_config = [](ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                      ncclConfig_t* config) {
    ++made.at(static_cast<std::size_t>(config->blocking));
    return test_double::nccl().comm_init_rank_config(comm, size, id, rank, config);
  };
  (void)measure(2, {&counting, test_double::apis().cuda},
                {.operations = {"all_reduce"}, .sizes = {8}, .rounds = 1, .most_calls = 1});
  EXPECT_EQ(made[0], 2 * 2);  // On each rank ours and the bare one.
  EXPECT_EQ(made[1], 2);
}

TEST_F(OverDouble, AnElementThatIsNotReducedIsFound) {
  backend::nccl::NcclApi lies = *test_double::apis().nccl;
  lies.all_reduce = [](const void* in, void* out, std::size_t count, ncclDataType_t type,
                       ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    return test_double::nccl().all_reduce(in, out, count > 1 ? count - 1 : count, type, op, comm,
                                          stream);
  };
  const auto rows =
      measure(2, {&lies, test_double::apis().cuda},
              {.operations = {"all_reduce"}, .sizes = {4000}, .rounds = 1, .most_calls = 1});
  for (const auto& of_rank : rows) {
    EXPECT_EQ(of_rank.at(0).wrong, 3U);  // One in each loop.
    EXPECT_FALSE(passes(of_rank.at(0)));
  }
}

}  // namespace
}  // namespace tutti::gpu
