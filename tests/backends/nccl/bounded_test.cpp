#include <tutti/coalesce.hpp>

#include "backends/nccl/groups.hpp"
#include "support/gather_bounded.hpp"

// all_gather_bounded: the host counts the rows, and only calls that need the count wait for it.

namespace tutti::test::nccl_double {
namespace {

constexpr std::int64_t bound = 5;
constexpr float untouched = -7;

class Bounded : public Double {
 protected:
  void TearDown() override {
    set_messages_side_by_side(false);
    Double::TearDown();
  }
};

/// One such call of a rank, which has `rows` rows of its number.
struct Gathering {
  const Member& at;
  std::int64_t rows;
  TensorView in = at.make(bound);
  TensorView out = at.make(bound * at.group.size());

  Gathering(const Member& member, std::int64_t n) : at(member), rows(n) {
    at.fill(in, static_cast<float>(at.rank), 2ms);
    at.fill(out, untouched);
  }
  ~Gathering() {
    at.free(in);
    at.free(out);
  }
  Gathering(const Gathering&) = delete;
  Gathering& operator=(const Gathering&) = delete;

  ConstTensorView own() const { return {in.data, in.dtype, {rows}, in.device}; }
  Work start() const { return gather_bounded_async(at.group, own(), out, {.stream = at.stream()}); }
  /// Every rank's rows in its slot, and nothing behind them.
  template <typename RowsOf>
  void expect(const RowsOf& rows_of) const {
    std::vector<float> want;
    for (int r = 0; r < at.group.size(); ++r)
      for (std::int64_t i = 0; i < bound; ++i)
        want.push_back(i < rows_of(r) ? static_cast<float>(r) : untouched);
    EXPECT_EQ(at.read(out, at.compute), want);
  }
};

// Rank 1 makes the gather only after rank 0 has made two calls.
TEST_F(Bounded, NeitherAnAsyncCallNorTheOneBehindItWaits) {
  set_messages_side_by_side(true);
  on_groups(2, [](const Member& at) {
    const CallOptions options{.stream = at.stream()};
    const CallOptions aside{.stream = {at.other}};
    const TensorView word = at.make(1);
    const TensorView sum = at.make(1);
    at.fill(sum, 1);
    at.fill(word, 3);
    cuda().stream_synchronize(at.compute);
    if (at.rank == 1) at.group.recv_async(word, 0, 0, aside).wait();
    {
      const Gathering gathering(at, at.rank + 1);
      Work gathered = gathering.start();
      Work reduced = at.group.all_reduce_async(sum, ReduceOp::sum, options);
      if (at.rank == 0) at.group.send_async(word, 1, 0, aside).wait();
      gathered.wait();
      reduced.wait();
      gathering.expect([](int r) { return r + 1; });
    }
    EXPECT_TRUE(at.holds(sum, 2));
    at.free(word);
    at.free(sum);
  });
}

TEST_F(Bounded, SeveralOnTheirWayKeepTheirOwnNumbers) {
  on_groups(3, [](const Member& at) {
    const Gathering first(at, at.rank);
    const Gathering second(at, bound - at.rank);
    const Gathering third(at, at.rank == 1 ? bound : 0);
    std::vector<Work> works;
    for (const Gathering* one : {&first, &second, &third}) works.push_back(one->start());
    Work::all(works).wait();
    first.expect([](int r) { return r; });
    second.expect([](int r) { return bound - r; });
    third.expect([](int r) { return r == 1 ? bound : 0; });
  });
}

TEST_F(Bounded, CoalescedWithOthersItEndsWithThem) {
  on_groups(2, [](const Member& at) {
    const Gathering gathering(at, 1 + at.rank);
    const TensorView sum = at.make(1);
    at.fill(sum, 1);
    Coalesce together(at.group);
    Work gathered = gathering.start();
    Work reduced = at.group.all_reduce_async(sum, ReduceOp::sum, {.stream = at.stream()});
    Work all = together.launch();
    all.block_stream(at.stream());
    gathering.expect([](int r) { return 1 + r; });
    EXPECT_TRUE(at.holds(sum, 2));
    all.wait();
    gathered.wait();
    reduced.wait();
    at.free(sum);
  });
}

TEST_F(Bounded, TheRowsAreCountedWhileAStreamCapturesInGlobalMode) {
  RankBarrier barrier(2);
  on_groups(2, [&](const Member& at) {
    const Gathering gathering(at, at.rank + 1);
    barrier.wait();
    EXPECT_EQ(begin_capture(at.other, cudaStreamCaptureModeGlobal), cudaSuccess);
    gather_bounded(at.group, gathering.own(), gathering.out, {.stream = at.stream()});
    gathering.start().wait();
    barrier.wait();
    Graph graph;
    EXPECT_EQ(end_capture(at.other, &graph), cudaSuccess);
    barrier.wait();
    gathering.expect([](int r) { return r + 1; });
    barrier.wait();
  });
}

// An allocation by CUDA may block until the device is idle, and a collective on the device may wait
// for this very call.
TEST_F(Bounded, TheFirstCallAsksForNoPageLockedMemory) {
  RankBarrier barrier(2);
  on_groups(2, [&](const Member& at) {
    const Gathering gathering(at, 2);
    const int before = calls("cudaHostAlloc");
    barrier.wait();
    gathering.start().wait();
    EXPECT_EQ(calls("cudaHostAlloc"), before);
    gathering.expect([](int) { return 2; });
  });
}

TEST_F(Bounded, TheStreamOfABlockingCallIsBehindTheRows) {
  on_groups(2, [](const Member& at) {
    const Gathering gathering(at, 2);
    gather_bounded(at.group, gathering.own(), gathering.out, {.stream = at.stream()});
    const TensorView copied = at.make(gathering.out.shape.numel());
    nccl_double::copy(at.compute, static_cast<float*>(copied.data),
                      static_cast<const float*>(gathering.out.data),
                      static_cast<std::size_t>(copied.shape.numel()));
    EXPECT_EQ(at.read(copied, at.compute), at.read(gathering.out, at.compute));
    gathering.expect([](int) { return 2; });
    at.free(copied);
  });
}

TEST_F(Bounded, ARankThatDoesNotComeIsNamedByTheDeadline) {
  RankBarrier end(2);
  on_groups(
      2,
      [&](const Member& at) {
        if (at.rank == 0) {
          const Gathering gathering(at, 1);
          Work work = gathering.start();
          expect_error(Errc::timeout, {"all_gather_bounded", "missing: 1"}, [&] { work.wait(); });
        }
        end.wait();
      },
      {.timeout = 300ms});
}

// The counts that a backend would read before their event.
TEST_F(Bounded, NumbersThatAreNotThereYetAreNoNumbers) {
  static backend::nccl::CudaApi hasty = *apis().cuda;
  hasty.memcpy_async = [](void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                          cudaStream_t stream) {
    if (kind == cudaMemcpyDeviceToHost) return cudaSuccess;
    return cuda().memcpy_async(to, from, bytes, kind, stream);
  };
  GroupSetup setup;
  setup.apis.cuda = &hasty;
  on_groups(
      2,
      [](const Member& at) {
        const Gathering gathering(at, 1);
        Work work = gathering.start();
        expect_error(Errc::mismatch, {"has -1 rows", "room for 5"}, [&] { work.wait(); });
      },
      setup);
}

}  // namespace
}  // namespace tutti::test::nccl_double
