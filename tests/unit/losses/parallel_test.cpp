#include "losses/parallel.hpp"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace tutti::internal::losses {
namespace {

using Parts = std::vector<std::pair<std::size_t, std::size_t>>;

Parts parts_of(int threads, std::size_t count) {
  std::mutex mutex;
  Parts parts;
  in_parallel(threads, count, [&](std::size_t first, std::size_t last) {
    const std::lock_guard lock(mutex);
    parts.emplace_back(first, last);
  });
  std::ranges::sort(parts);
  return parts;
}

TEST(InParallel, PartsAreNotEmptyAndCoverEverythingOnce) {
  EXPECT_EQ(parts_of(3, 10), (Parts{{0, 4}, {4, 7}, {7, 10}}));
  EXPECT_EQ(parts_of(4, 8), (Parts{{0, 2}, {2, 4}, {4, 6}, {6, 8}}));
  EXPECT_EQ(parts_of(8, 2), (Parts{{0, 1}, {1, 2}}));
  EXPECT_EQ(parts_of(4, 0), Parts{});
  for (const int threads : {-1, 0, 1}) EXPECT_EQ(parts_of(threads, 10), (Parts{{0, 10}}));
}

TEST(InParallel, OnePartRunsOnTheCallersThreadAndTheOthersDoNot) {
  const auto caller = std::this_thread::get_id();
  std::vector<std::thread::id> of(3);
  in_parallel(1, of.size(), [&](std::size_t, std::size_t) { of[0] = std::this_thread::get_id(); });
  EXPECT_EQ(of[0], caller);
  in_parallel(3, of.size(),
              [&](std::size_t first, std::size_t) { of[first] = std::this_thread::get_id(); });
  EXPECT_EQ(of[0], caller);
  EXPECT_NE(of[1], caller);
  EXPECT_NE(of[2], caller);
}

// Parts that wait for one another end only if all run at once.
TEST(InParallel, PartsRunAtTheSameTime) {
  std::atomic<int> arrived = 0;
  in_parallel(3, 3, [&](std::size_t, std::size_t) {
    ++arrived;
    arrived.notify_all();
    for (int now = arrived; now < 3; now = arrived) arrived.wait(now);
  });
  EXPECT_EQ(arrived, 3);
}

TEST(InParallel, TheFirstPartsErrorReachesTheCallerAfterAllHaveEnded) {
  for (const int threads : {1, 4}) {
    std::atomic<std::size_t> done = 0;
    try {
      in_parallel(threads, 100, [&](std::size_t first, std::size_t last) {
        done += last - first;
        if (first != 25) throw std::runtime_error(std::to_string(first));
      });
      ADD_FAILURE() << "no error";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "0");
    }
    EXPECT_EQ(done, 100U);
  }
}

}  // namespace
}  // namespace tutti::internal::losses
