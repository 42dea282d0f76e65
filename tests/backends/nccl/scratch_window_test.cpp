#include <array>
#include <atomic>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <tutti/coalesce.hpp>

#include "backends/nccl/groups.hpp"

// The setting scratch_window: scratch memory of calls in a block that is registered with NCCL.

namespace tutti::test::nccl_double {
namespace {

constexpr std::size_t ranks = 2;

/// The windows, and the results of the last ncclAllGather, by device.
struct Seen {
  std::array<std::pair<const std::byte*, std::size_t>, ranks> windows{};
  std::array<const std::byte*, ranks> gathered{};

  /// The offset of the result in the window; -1: it lies elsewhere.
  std::ptrdiff_t offset(int rank) const {
    const auto r = static_cast<std::size_t>(rank);
    const auto at = gathered.at(r) - windows.at(r).first;
    const bool inside = at >= 0 && static_cast<std::size_t>(at) < windows.at(r).second;
    return inside ? at : -1;
  }
};
Seen seen;

std::size_t current_device() {
  int device = 0;
  cuda().get_device(&device);
  return static_cast<std::size_t>(device);
}

class NcclScratchWindow : public Double {
 protected:
  /// Groups of two ranks with this window, whose calls `seen` notes.
  static GroupSetup with(const std::string& bytes) {
    static auto noting = nccl();
    noting.comm_window_register = [](ncclComm_t comm, void* data, std::size_t size, void** window,
                                     int flags) {
      seen.windows.at(current_device()) = {static_cast<const std::byte*>(data), size};
      return nccl().comm_window_register(comm, data, size, window, flags);
    };
    noting.all_gather = [](const void* in, void* out, std::size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
      seen.gathered.at(current_device()) = static_cast<const std::byte*>(out);
      return nccl().all_gather(in, out, count, type, comm, stream);
    };
    seen = {};
    GroupSetup setup{.args = "scratch_window=" + bytes};
    setup.apis.nccl = &noting;
    return setup;
  }

  /// 2 and 3 floats; the second has the slot's size.
  static void expect_gathered(const Member& at) {
    const TensorView in = at.make(at.rank + 2);
    const TensorView out = at.make(5);
    at.fill(in, static_cast<float>(at.rank + 1));
    at.group.all_gather(in, out, {2, 3}, {.stream = at.stream()});
    EXPECT_EQ(at.read(out, at.compute), (std::vector<float>{1, 1, 2, 2, 2}));
    at.free(in);
    at.free(out);
  }
  static void expect_minimum(const Member& at, std::int64_t count) {
    const TensorView data = at.make(count);
    at.fill(data, static_cast<float>(at.rank + 1));
    at.group.all_reduce(data, ReduceOp::min, {.stream = at.stream()});
    EXPECT_TRUE(at.holds(data, 1));
    at.free(data);
  }
};

TEST_F(NcclScratchWindow, PaddedSlotsAreAtOnePlaceOfTheWindowOnAllRanks) {
  const int freed = calls("ncclMemFree");
  const int deregistered = calls("ncclCommWindowDeregister");
  const int allocated = calls("cudaMallocFromPoolAsync");
  on_groups(
      ranks, [](const Member& at) { expect_gathered(at); }, with("4K"));
  for (const int rank : {0, 1}) {
    EXPECT_EQ(seen.windows.at(static_cast<std::size_t>(rank)).second, 4096U);
    EXPECT_EQ(seen.offset(rank), 0);
  }
  EXPECT_EQ(calls("cudaMallocFromPoolAsync"), allocated + 2);  // One element each, for barriers.
  EXPECT_EQ(calls("ncclCommWindowDeregister"), deregistered + 2);
  EXPECT_EQ(calls("ncclMemFree"), freed + 2);
}

// A rank's slice alone would lie at another offset on each rank.
TEST_F(NcclScratchWindow, FoldedSlicesAreGatheredInTheirPlaceOfTheWindow) {
  on_groups(
      ranks, [](const Member& at) { expect_minimum(at, 8); }, with("4K"));
  EXPECT_EQ(seen.offset(0), 0);
  EXPECT_EQ(seen.offset(1), 0);
}

TEST_F(NcclScratchWindow, WithoutTheSettingThereIsNone) {
  const int before = calls("ncclMemAlloc");
  on_groups(
      ranks, [](const Member& at) { expect_gathered(at); }, with("0"));
  EXPECT_EQ(calls("ncclMemAlloc"), before);
}

TEST_F(NcclScratchWindow, WhatDoesNotFitComesFromThePool) {
  on_groups(
      ranks,
      [](const Member& at) {
        at.group.barrier();
        const int before = calls("cudaMallocFromPoolAsync");
        at.group.barrier();
        expect_minimum(at, 200);  // 2 slots of 400 bytes, and 2 numbers.
        at.group.barrier();
        EXPECT_EQ(calls("cudaMallocFromPoolAsync"), before);
        at.group.barrier();
        expect_minimum(at, 400);
        at.group.barrier();
        EXPECT_EQ(calls("cudaMallocFromPoolAsync"), before + 2);
      },
      with("1K"));
}

// The first and the third fit together, the second does not fit behind the first.
TEST_F(NcclScratchWindow, OperationsOfACoalescedCallLieBesideEachOther) {
  on_groups(
      ranks,
      [](const Member& at) {
        std::vector<TensorView> all;
        for (const std::int64_t count : {100, 200, 60}) all.push_back(at.make(count));
        at.group.barrier();
        const int before = calls("cudaMallocFromPoolAsync");
        at.group.barrier();
        for (int run = 0; run < 3; ++run) {
          for (const auto& one : all) at.fill(one, static_cast<float>(at.rank + run));
          Coalesce together(at.group);
          for (const auto& one : all)
            (void)at.group.all_reduce_async(one, ReduceOp::min, {.stream = at.stream()});
          together.launch().block_stream(at.stream());
          for (const auto& one : all) EXPECT_TRUE(at.holds(one, static_cast<float>(run)));
        }
        at.group.barrier();
        EXPECT_EQ(calls("cudaMallocFromPoolAsync"), before + 3 * 2);
        for (const auto& one : all) at.free(one);
      },
      with("1K"));
}

// The scratch memory of the first has another size on each rank.
TEST_F(NcclScratchWindow, SlotsBehindAnUnevenReductionAreAtOnePlaceToo) {
  on_groups(
      ranks,
      [](const Member& at) {
        const std::vector<std::int64_t> rows{5, 200};
        const std::vector<std::int64_t> blocks{2, 3};
        const TensorView in = at.make(205);
        const TensorView out = at.make(rows[static_cast<std::size_t>(at.rank)]);
        const TensorView mine = at.make(at.rank + 2);
        const TensorView all = at.make(5);
        at.fill(in, static_cast<float>(at.rank + 4));
        at.fill(mine, static_cast<float>(at.rank + 1));
        Coalesce together(at.group);
        (void)at.group.reduce_scatter_async(in, out, rows, ReduceOp::min, {.stream = at.stream()});
        (void)at.group.all_gather_async(mine, all, blocks, {.stream = at.stream()});
        together.launch().block_stream(at.stream());
        EXPECT_TRUE(at.holds(out, 4));
        EXPECT_EQ(at.read(all, at.compute), (std::vector<float>{1, 1, 2, 2, 2}));
        for (const auto& one : {in, out, mine, all}) at.free(one);
      },
      with("4K"));
  EXPECT_GT(seen.offset(0), 0);
  EXPECT_EQ(seen.offset(0), seen.offset(1));
}

TEST_F(NcclScratchWindow, CapturedCallsHaveMemoryOfTheirGraph) {
  on_groups(
      ranks,
      [](const Member& at) {
        const TensorView data = at.make();
        expect_minimum(at, 10);
        Graph graph;
        begin_capture(at.compute, cudaStreamCaptureModeThreadLocal);
        at.group.all_reduce(data, ReduceOp::min, {.stream = at.stream()});
        ASSERT_EQ(end_capture(at.compute, &graph), cudaSuccess);
        at.fill(data, static_cast<float>(at.rank + 3));
        launch(graph, at.compute);
        expect_minimum({at.group, at.rank, at.other, at.other}, 10);  // Not behind the graph.
        EXPECT_TRUE(at.holds(data, 3));
        graph.reset();
        at.free(data);
      },
      with("64K"));
}

TEST_F(NcclScratchWindow, AnAbortedGroupFreesIt) {
  const int freed = calls("ncclMemFree");
  on_groups(
      ranks,
      [](const Member& at) {
        expect_minimum(at, 10);
        at.group.abort("the test");
      },
      with("64K"));
  EXPECT_EQ(calls("ncclMemFree"), freed + 2);  // The double reports memory that is in use.
}

TEST_F(NcclScratchWindow, WhatNcclDoesNotRegisterIsFreedAndReported) {
  set_registers(false, false);
  auto setup = with("4K");
  std::atomic<int> warnings{0};
  setup.logger = [&](LogLevel level, std::string_view text) {
    if (level == LogLevel::warning && text.find("scratch_window has no effect") != text.npos)
      ++warnings;
  };
  on_groups(
      ranks, [](const Member& at) { expect_gathered(at); }, setup);
  EXPECT_EQ(warnings, 2);
  EXPECT_EQ(seen.offset(0), -1);
}

TEST_F(NcclScratchWindow, AnOlderNcclIsNamedOnAllRanks) {
  set_version(23004);
  const auto setup = with("4K");
  const auto store = make_memory_store();
  on_threads(ranks, [&](int rank) {
    expect_error(Errc::unsupported, {"scratch_window", "2.30.7", "2.30.4"},
                 [&] { (void)make_group(rank, ranks, store, setup); });
  });
}

TEST_F(NcclScratchWindow, ADifferenceBetweenRanksIsRefused) {
  const auto large = with("64K");
  const auto small = with("4K");
  const auto store = make_memory_store();
  on_threads(ranks, [&](int rank) {
    expect_error(Errc::mismatch,
                 {"'scratch_window=65536' on rank 0", "'scratch_window=4096' on rank 1"},
                 [&] { (void)make_group(rank, ranks, store, rank == 0 ? large : small); });
  });
}

TEST_F(NcclScratchWindow, AFailureOfOneRankToRegisterEndsTheCreationOnAll) {
  const auto setup = with("4K");
  const auto store = make_memory_store();
  set_faults(1, {.fails = "ncclCommWindowRegister"});
  on_threads(ranks, [&](int rank) {
    expect_error(Errc::backend, {"ncclCommWindowRegister"},
                 [&] { (void)make_group(rank, ranks, store, setup); });
  });
}

// NCCL may go on registering the memory.
TEST_F(NcclScratchWindow, SlowItIsKeptIfTheAbortOfItsRegistrationHangs) {
  const int freed = calls("ncclMemFree");
  const auto setup = with("4K");
  const auto store = make_memory_store();
  set_faults(0, {.abort_hangs = true});
  set_faults(1, {.abort_hangs = true, .fails = "ncclCommWindowRegister"});
  on_threads(ranks, [&](int rank) {
    expect_error(Errc::backend, {"ncclCommWindowRegister"},
                 [&] { (void)make_group(rank, ranks, store, setup); });
  });
  EXPECT_EQ(calls("ncclMemFree"), freed);
  for (const int rank : {0, 1}) set_faults(rank, {});
  for (const auto& [data, bytes] : seen.windows) nccl().mem_free(const_cast<std::byte*>(data));
}

TEST_F(NcclScratchWindow, TheSizeIsANumberOfBytesWithOrWithoutAUnit) {
  using backend::nccl::Settings;
  EXPECT_EQ(Settings::of("scratch_window=77").scratch_window, 77U);
  EXPECT_EQ(Settings::of("priority=1,scratch_window=3M").scratch_window, 3U << 20);
  EXPECT_EQ(Settings::of("scratch_window=2G").of_all_ranks(), "scratch_window=2147483648");
  for (const std::string wrong : {"", "M", "-1", "64X", "64MB", "1.5G", "99999999999G"})
    expect_error(Errc::invalid_argument, {"'" + wrong + "'", "a number of bytes, such as 64M"},
                 [&] { (void)Settings::of("scratch_window=" + wrong); });
}

}  // namespace
}  // namespace tutti::test::nccl_double
