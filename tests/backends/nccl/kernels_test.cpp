#include <vector>

#include <tutti/coalesce.hpp>

#include "backends/nccl/groups.hpp"

// The kernels of the backend nccl, over the double.

namespace tutti::test::nccl_double {
namespace {

class Kernels : public Double {};

TEST_F(Kernels, OneCoalescedCallTakesBothWays) {
  on_groups(3, [](const Member& at) {
    const TensorView sum = at.make();
    const TensorView max = at.make(33);
    const TensorView mine = at.make(6);
    const TensorView part = at.make(2);
    const auto rank = static_cast<float>(at.rank);
    at.fill(sum, rank, 20ms);
    at.fill(max, rank);
    at.fill(mine, rank + 1);
    Coalesce together(at.group);
    const CallOptions options{.stream = at.stream()};
    (void)at.group.all_reduce_async(sum, ReduceOp::sum, options);
    (void)at.group.all_reduce_async(max, ReduceOp::max, options);
    (void)at.group.reduce_scatter_async(mine, part, 2, ReduceOp::min, options);
    together.launch().block_stream(at.stream());
    EXPECT_TRUE(at.holds(sum, 3));
    EXPECT_TRUE(at.holds(max, 2));
    EXPECT_TRUE(at.holds(part, 1));
    for (const TensorView& array : {sum, max, mine, part}) at.free(array);
  });
}

TEST_F(Kernels, TheHostDoesNotWaitForThem) {
  on_groups(2, [](const Member& at) {
    const TensorView data = at.make();
    at.fill(data, 1);
    at.group.all_reduce(data, ReduceOp::max, {.stream = at.stream()});  // Connects the ranks.
    constexpr auto busy = 500ms;
    const auto start = std::chrono::steady_clock::now();
    at.fill(data, 2, busy);
    Work work = at.group.all_reduce_async(data, ReduceOp::max, {.stream = at.stream()});
    EXPECT_LT(std::chrono::steady_clock::now() - start, busy);
    work.wait();
    EXPECT_TRUE(at.holds(data, 2));
    at.free(data);
  });
}

void expect_refused(const Member& at, const std::string& why) {
  const TensorView data = at.make();
  at.fill(data, 1);
  EXPECT_FALSE(at.group.supports(Operation::all_reduce, DType::f32, ReduceOp::max));
  EXPECT_FALSE(at.group.supports(Operation::scan, DType::i32));
  EXPECT_TRUE(at.group.supports(Operation::all_reduce, DType::i32, ReduceOp::max));
  const CallOptions options{.stream = at.stream()};
  expect_error(Errc::unsupported, {"all_reduce", "max", "f32"},
               [&] { at.group.all_reduce(data, ReduceOp::max, options); });
  expect_error(Errc::unsupported, {"kernels", why}, [&] {
    at.group.all_reduce(data, ReduceOp::sum, {.stream = at.stream(), .order_fixed = true});
  });
  at.group.all_reduce(data, ReduceOp::sum, options);
  EXPECT_TRUE(at.holds(data, 3));
  at.free(data);
}

TEST_F(Kernels, WithoutNvccWhatNeedsThemIsRefusedAndTheRestWorks) {
  backend::nccl::Apis bare = apis();
  bare.fold_image = {};
  on_groups(3, [](const Member& at) { expect_refused(at, "built without nvcc"); }, {.apis = bare});
}

TEST_F(Kernels, AnImageThatTheDriverDoesNotTakeIsNamed) {
  static const std::vector<std::byte> other(64);
  backend::nccl::Apis apis = nccl_double::apis();
  apis.fold_image = other;
  on_groups(3, [](const Member& at) { expect_refused(at, "CUDA_ERROR_INVALID_IMAGE"); },
            {.apis = apis});
}

TEST_F(Kernels, ALaunchThatFailsEndsTheGroup) {
  RankBarrier barrier(2);
  on_groups(2, [&](const Member& at) {
    const TensorView data = at.make();
    at.fill(data, 1);
    at.group.all_reduce(data, ReduceOp::max, {.stream = at.stream()});
    barrier.wait();
    if (at.rank == 1) set_faults(1, {.fails = "cuLaunchKernel"});
    expect_error({Errc::backend, Errc::aborted, Errc::peer_lost, Errc::timeout}, {}, [&] {
      at.group.all_reduce_async(data, ReduceOp::max, {.stream = at.stream()}).wait();
    });
    barrier.wait();
    at.free(data);
  });
}

}  // namespace
}  // namespace tutti::test::nccl_double
