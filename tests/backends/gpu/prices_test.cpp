#include "prices.hpp"

#include <set>

#include <gtest/gtest.h>

#include "backends/nccl/double/bare_rank.hpp"

// The prices over the double of NCCL and CUDA: which calls are made, and that a wrong fold is
// found. The times are those of the double.

namespace tutti::gpu {
namespace {

namespace test_double = tutti::test::nccl_double;

class Prices : public test_double::Double {
 protected:
  static inline int pools = 0;

  static Rank rank() {
    return {.apis = test_double::apis(), .elapsed_us = [](cudaEvent_t, cudaEvent_t) { return 2.; }};
  }
  /// The end of a pool, which the double's table lacks.
  static CudaFunctions functions() {
    CudaFunctions all;
    all.mem_pool_destroy = [](cudaMemPool_t) {
      ++pools;
      return cudaSuccess;
    };
    return all;
  }
};

TEST_F(Prices, EachCallIsMadeInEveryRound) {
  test_double::cuda().set_device(0);
  const int records = test_double::calls("cudaEventRecord");
  const int groups = test_double::calls("ncclGroupEnd");
  const int launches = test_double::calls("cudaGraphLaunch");
  pools = 0;
  const auto prices = measure_prices(rank(), functions(), {.rounds = 2, .calls = 10});
  ASSERT_EQ(prices.size(), 11U);
  for (const Price& price : prices) EXPECT_GT(price.ns, 0) << price.call;
  EXPECT_EQ(test_double::calls("cudaEventRecord") - records, 3 * 10);
  EXPECT_EQ(test_double::calls("ncclGroupEnd") - groups, 3 * 10);
  EXPECT_EQ(test_double::calls("cudaGraphLaunch") - launches, 3 * 10);
  EXPECT_EQ(pools, 2);
  const auto table = to_markdown(std::vector<Price>{{"cudaEventRecord", 812.4}});
  EXPECT_NE(table.find("| cudaEventRecord | 812 |\n"), std::string::npos) << table;
}

TEST_F(Prices, FoldsAreCheckedAndTheirBytesCounted) {
  test_double::cuda().set_device(0);
  const auto rates = measure_folds(rank(), {.rounds = 2, .fold_bytes = 4096});
  ASSERT_EQ(rates.size(), 9U);
  EXPECT_EQ(rates[0].what, "a copy on the device");
  EXPECT_DOUBLE_EQ(rates[0].gb_per_s, 4096 / 2e3);  // Half of it, read and written.
  EXPECT_EQ(rates[1].what, "fold of 4 slots of 1 KiB i8");
  EXPECT_DOUBLE_EQ(rates[1].gb_per_s, 5 * 1024 / 2e3);
  EXPECT_DOUBLE_EQ(rates[2].gb_per_s, 9 * 512 / 2e3);
  for (const Rate& rate : rates) EXPECT_EQ(rate.wrong, 0U) << rate.what;
}

TEST_F(Prices, AFoldThatDoesNothingIsWrong) {
  test_double::cuda().set_device(0);
  static const backend::nccl::DriverApi lazy = [] {
    auto table = *test_double::apis().driver;
    table.launch_kernel = [](CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                             unsigned, CUstream, void**, void**) { return CUDA_SUCCESS; };
    return table;
  }();
  Rank here = rank();
  here.apis.driver = &lazy;
  const auto rates = measure_folds(here, {.rounds = 1, .fold_bytes = 4096});
  EXPECT_EQ(rates[0].wrong, 0U);
  EXPECT_EQ(rates[1].wrong, 1024U);
  EXPECT_NE(to_markdown(rates).find("| WRONG: 1024 bytes |"), std::string::npos);
}

TEST_F(Prices, WithoutKernelsTheCopyAloneIsMeasured) {
  test_double::cuda().set_device(0);
  Rank here = rank();
  here.apis.driver = nullptr;
  EXPECT_EQ(measure_folds(here, {.rounds = 1, .fold_bytes = 4096}).size(), 1U);
}

}  // namespace
}  // namespace tutti::gpu
