#include "soak.hpp"

#include <atomic>
#include <vector>

#include <gtest/gtest.h>

#include "backends/nccl/double/bare_rank.hpp"
#include "reducer.hpp"
#include "support/ranks.hpp"

// The soak and the reducer's step over the double of NCCL and CUDA.

namespace tutti::gpu {
namespace {

namespace test_double = tutti::test::nccl_double;

class Soak : public test_double::Double {
 protected:
  /// The result of every rank of two.
  static std::vector<SoakResult> run(const SoakOptions& options, backend::nccl::Apis apis,
                                     const std::function<MemoryInUse()>& memory) {
    const auto store = make_memory_store();
    std::vector<SoakResult> results(2);
    test::on_threads(2, [&](int rank) {
      test_double::cuda().set_device(rank);
      const Rank here{.rank = rank, .size = 2, .device = rank, .store = store, .apis = apis};
      results[static_cast<std::size_t>(rank)] = soak(here, options, memory);
    });
    return results;
  }
  static MemoryInUse same() { return {100, 200}; }
};

const SoakOptions few{.calls = 25, .block = 10, .groups = 3};

TEST_F(Soak, CallsAndGroupsAreCountedOnAllRanks) {
  for (const SoakResult& result : run(few, test_double::apis(), same)) {
    EXPECT_EQ(result.calls, 25);
    EXPECT_EQ(result.groups, 3);
    EXPECT_EQ(fault_of(result, few), "");
    EXPECT_EQ(to_text(result, few),
              "25 of 25 calls of 8 bytes, 3 of 3 groups; resident +0.0 MiB, device +0.0 MiB");
  }
  EXPECT_GT(resident_bytes(), 1 << 20);
}

TEST_F(Soak, TheEndOfTheTimeIsNoFault) {
  SoakOptions options = few;
  options.limit = std::chrono::nanoseconds(1);
  for (const SoakResult& result : run(options, test_double::apis(), same)) {
    EXPECT_EQ(result.calls, 10);
    EXPECT_EQ(result.groups, 1);
    EXPECT_EQ(fault_of(result, options), "");
  }
}

TEST_F(Soak, AWrongSumIsAFault) {
  static backend::nccl::NcclApi lies = *test_double::apis().nccl;
  static std::atomic<int> calls;
  calls = 0;
  lies.all_reduce = [](const void* in, void* out, std::size_t count, ncclDataType_t type,
                       ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    const bool wrong = type == ncclInt64 && ++calls > 20;  // On both ranks, or NCCL would notice.
    return test_double::nccl().all_reduce(in, out, count, type, wrong ? ncclMax : op, comm, stream);
  };
  auto apis = test_double::apis();
  apis.nccl = &lies;
  const auto faults = [](const SoakResult& result) { return fault_of(result, few); };
  test_double::set_faults(0, {.mixes_reductions = true});
  test_double::set_faults(1, {.mixes_reductions = true});
  for (const SoakResult& result : run(few, apis, same))
    EXPECT_TRUE(faults(result).ends_with(" results are wrong")) << faults(result);
}

TEST_F(Soak, GrowthBeyondTheBoundIsAFault) {
  for (const bool device : {false, true}) {
    std::atomic<int> measured = 0;
    const auto memory = [&] {
      const std::int64_t grown = measured++ < 2 ? 0 : 65 << 20;
      return device ? MemoryInUse{0, grown} : MemoryInUse{grown, 0};
    };
    for (const SoakResult& result : run(few, test_double::apis(), memory))
      EXPECT_EQ(fault_of(result, few),
                fmt::format("{} has grown by 65 MiB; the bound is 64 MiB",
                            device ? "memory of the device" : "resident memory"));
  }
}

TEST_F(Soak, AStepOfTheReducerIsTheMeanOfAllGradients) {
  const auto store = make_memory_store();
  test::on_threads(2, [&](int rank) {
    test_double::cuda().set_device(rank);
    Rank here{.rank = rank, .size = 2, .device = rank, .store = store};
    here.apis = test_double::apis();
    here.elapsed_us = [](cudaEvent_t, cudaEvent_t) { return 3.; };
    const auto time = measure_reducer(here, {5, 300, 1000}, 2);
    EXPECT_EQ(time.wrong, 0);
    EXPECT_EQ(time.device_us, 3);
    EXPECT_GT(time.host_us, 0);
  });
  EXPECT_EQ(gradient_counts().size(), 160U);
}

}  // namespace
}  // namespace tutti::gpu
