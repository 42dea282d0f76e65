#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include <fmt/ranges.h>

#include "backends/nccl/groups.hpp"

// The functions of CUDA and NCCL that a small call costs in the steady state: the table in
// docs/nccl.md.

namespace tutti::test::nccl_double {
namespace {

using Names = std::vector<std::string>;

class CallCounts : public Double {
 protected:
  static constexpr int size = 2;
  static constexpr int rounds = 20;
  using Call = std::function<Work(const Member& at, const TensorView& data)>;

  /// NCCL is polled while it is in progress; the number of polls is not the library's.
  static Names without_polls(Names names) {
    const auto repeated = std::unique(names.begin(), names.end(),
                                      [](const std::string& one, const std::string& next) {
                                        return one == next && one == "ncclCommGetAsyncError";
                                      });
    names.erase(repeated, names.end());
    return names;
  }
  static std::ptrdiff_t calls_of_cuda(const Names& names) {
    return std::ranges::count_if(names, [](const auto& name) { return name.starts_with("cu"); });
  }

  /// Makes `call` on all ranks, first with no other call pending and then in bursts. `want`: the
  /// functions that the thread calls in bursts; they are no more otherwise. That holds for most
  /// calls on a busy machine: if a call takes more than 2 ms, the group's thread or the next call
  /// ends it; and a call makes an event while the group's thread has not seen the end of another.
  static void expect_calls(const Call& call, const Names& want) {
    RankBarrier barrier(size);
    on_groups(size, [&](const Member& at) {
      void* block = at.group.memory().allocate(Member::count * sizeof(float), {});
      const TensorView data{block, DType::f32, {Member::count}, at.group.memory().device()};
      fill(nullptr, static_cast<float*>(block), Member::count, 0);
      cuda().stream_synchronize(nullptr);
      std::vector<Work> works;
      const auto settle = [&] {
        works.clear();
        cuda().stream_synchronize(at.compute);
        cuda().stream_synchronize(nullptr);
        barrier.wait();
        // The group's threads query until they have seen the ends.
        for (int queries = -1; queries != calls("cudaEventQuery");) {
          queries = calls("cudaEventQuery");
          std::this_thread::sleep_for(10ms);
        }
        barrier.wait();
      };
      const auto keep_busy = [&] {
        for (const auto stream : {at.compute, cudaStream_t()})
          fill(stream, static_cast<float*>(block), 0, 0, 50ms);
      };
      keep_busy();  // All calls at a time, so that no later one makes an event.
      for (int i = 0; i < 2 * rounds; ++i) works.push_back(call(at, data));
      settle();
      int as_listed = 0;
      for (const bool in_burst : {false, true, true, true}) {
        int no_more = 0;
        Names all;
        if (in_burst) keep_busy();
        for (int i = 0; i < rounds; ++i) {
          Names found = without_polls(calls_in([&] { works.push_back(call(at, data)); }));
          as_listed += in_burst && found == want ? 1 : 0;
          all.insert(all.end(), found.begin(), found.end());
          std::erase(found, "cudaEventCreateWithFlags");
          const bool cuda_no_more = calls_of_cuda(found) <= calls_of_cuda(want);
          no_more += cuda_no_more && found.size() <= want.size() ? 1 : 0;
          if (!in_burst) settle();
        }
        EXPECT_GT(2 * no_more, rounds) << fmt::format("{}", all);
        settle();
      }
      EXPECT_GT(as_listed, 0);
      at.group.memory().release(block, Member::count * sizeof(float), {});
      cuda().stream_synchronize(nullptr);
    });
  }
};

const Names on_nccl{"ncclGroupStart", "ncclAllReduce", "ncclGroupEnd", "ncclCommGetAsyncError"};

Names around_nccl(Names before, const Names& after) {
  before.insert(before.end(), on_nccl.begin(), on_nccl.end());
  before.insert(before.end(), after.begin(), after.end());
  return before;
}

TEST_F(CallCounts, ABlockingCallOnAMadeStream) {
  expect_calls(
      [](const Member& at, const TensorView& data) {
        at.group.all_reduce(data, ReduceOp::sum, {.stream = at.stream()});
        return Work();
      },
      around_nccl({"cudaGetDevice", "cudaStreamIsCapturing", "cudaStreamWaitEvent"},
                  {"cudaEventRecord"}));
}

TEST_F(CallCounts, AnAsyncCallAndTheStreamsThatWaitForIt) {
  const auto call = [](const Member& at, const TensorView& data) {
    return at.group.all_reduce_async(data, ReduceOp::sum, {.stream = at.stream()});
  };
  const Names launched = around_nccl(
      {"cudaGetDevice", "cudaStreamIsCapturing", "cudaEventRecord", "cudaStreamWaitEvent"},
      {"cudaEventRecord"});
  expect_calls(call, launched);
  auto blocking = launched;
  blocking.insert(blocking.end(), {"cudaGetDevice", "cudaStreamWaitEvent"});
  expect_calls(
      [&](const Member& at, const TensorView& data) {
        Work work = call(at, data);
        work.block_stream({at.other});
        return work;
      },
      blocking);
}

TEST_F(CallCounts, AWaitOfTheHostIsQueriesBetweenThreeOtherCalls) {
  on_groups(size, [](const Member& at) {
    const TensorView data = at.make();
    at.fill(data, 1, slow);
    Work work = at.group.all_reduce_async(data, ReduceOp::sum, {.stream = at.stream()});
    Names names = calls_in([&] { work.wait(); });
    std::erase_if(names, [](const auto& name) {
      return name == "cudaEventQuery" || name == "cudaGetLastError";
    });
    EXPECT_EQ(names, (Names{"cudaGetDevice", "cudaThreadExchangeStreamCaptureMode",
                            "cudaThreadExchangeStreamCaptureMode"}));
    at.free(data);
  });
}

TEST_F(CallCounts, ABlockingCallOnADefaultStream) {
  expect_calls(
      [](const Member& at, const TensorView& data) {
        at.group.all_reduce(data);
        return Work();
      },
      around_nccl(
          {"cudaGetDevice", "cudaStreamIsCapturing", "cudaEventRecord", "cudaStreamWaitEvent"},
          {"cudaEventRecord", "cudaStreamWaitEvent"}));
}

}  // namespace
}  // namespace tutti::test::nccl_double
