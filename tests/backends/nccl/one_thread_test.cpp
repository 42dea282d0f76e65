
#include "backends/nccl/groups.hpp"

// One thread makes the calls of all ranks, one after another. NCCL may block inside a call for
// ranks whose calls this thread makes next, so no call may block the thread.

namespace tutti::test::nccl_double {
namespace {

class OneThread : public Double {
 protected:
  OneThread() { set_connects_each_function(true); }

  static constexpr int size = 4;
  static constexpr std::int64_t count = 64;

  /// A rank and this thread's objects on its device.
  struct Rank {
    ProcessGroup group;
    int rank;
    cudaStream_t stream = nullptr;
    TensorView in{};
    TensorView out{};

    Stream work_stream() const { return {stream}; }
    TensorView make(std::int64_t n) {
      void* data =
          group.memory().allocate(static_cast<std::size_t>(n) * sizeof(float), work_stream());
      return {data, DType::f32, {n}, group.memory().device()};
    }
    void set(const TensorView& array, float value) const {
      cuda().set_device(rank);
      fill(stream, static_cast<float*>(array.data), static_cast<std::size_t>(array.shape.numel()),
           value);
    }
    std::vector<float> read(const TensorView& array) {
      std::vector<float> values(static_cast<std::size_t>(array.shape.numel()));
      group.memory().copy(values.data(), array.data, array.bytes(), work_stream());
      return values;
    }
  };

  static std::vector<Rank> make_ranks(std::chrono::nanoseconds timeout) {
    // create_all() is for backends of the table; here a thread makes each as it does.
    const auto store = make_memory_store();
    std::vector<std::optional<ProcessGroup>> groups(size);
    on_threads(size, [&](int rank) {
      groups[static_cast<std::size_t>(rank)].emplace(
          make_group(rank, size, store, {.timeout = timeout}));
    });
    std::vector<Rank> ranks;
    for (int r = 0; r < size; ++r) {
      ranks.push_back({.group = *std::move(groups[static_cast<std::size_t>(r)]), .rank = r});
      cuda().set_device(r);
      cuda().stream_create_with_flags(&ranks.back().stream, cudaStreamNonBlocking);
      ranks.back().in = ranks.back().make(size * count);
      ranks.back().out = ranks.back().make(size * count);
    }
    return ranks;
  }
  static void end(std::vector<Rank> ranks) {
    for (auto& at : ranks) {
      for (const auto& array : {at.in, at.out})
        at.group.memory().release(array.data, array.bytes(), at.work_stream());
      cuda().set_device(at.rank);
      cuda().stream_synchronize(at.stream);
      cuda().stream_destroy(at.stream);
    }
    // Each end waits briefly for the other ranks to leave.
    on_threads(size, [&](int rank) {
      const ProcessGroup ended = std::move(ranks[static_cast<std::size_t>(rank)].group);
    });
  }
  static TensorView part(const TensorView& array, std::int64_t n) {
    return {array.data, DType::f32, {n}, array.device};
  }
  /// Makes a call on every rank in turn; then the streams wait for it.
  template <typename Call>
  static void in_turn(std::vector<Rank>& ranks, const Call& call) {
    std::vector<Work> works;
    for (auto& at : ranks) works.push_back(call(at));
    for (std::size_t r = 0; r < ranks.size(); ++r) works[r].block_stream(ranks[r].work_stream());
    for (auto& work : works) work.wait();
  }
};

TEST_F(OneThread, ServesFourDevicesWithTwentyCollectivesInTurn) {
  auto ranks = make_ranks(10s);
  const float sum = 1 + 2 + 3 + 4;
  for (int turn = 0; turn < 5; ++turn) {
    for (auto& at : ranks) at.set(at.in, static_cast<float>(at.rank + 1));
    in_turn(ranks, [](Rank& at) {
      return at.group.all_reduce_async(part(at.in, count), part(at.out, count), ReduceOp::sum,
                                       {.stream = at.work_stream()});
    });
    for (auto& at : ranks)
      EXPECT_EQ(at.read(part(at.out, count)), std::vector<float>(count, sum)) << at.rank;
    in_turn(ranks, [](Rank& at) {
      return at.group.all_gather_async(part(at.in, count), at.out, {},
                                       {.stream = at.work_stream()});
    });
    for (auto& at : ranks) {
      std::vector<float> want;
      for (int r = 0; r < size; ++r) want.insert(want.end(), count, static_cast<float>(r + 1));
      EXPECT_EQ(at.read(at.out), want) << at.rank;
    }
    in_turn(ranks, [turn](Rank& at) {
      return at.group.broadcast_async(part(at.in, count), turn % size,
                                      {.stream = at.work_stream()});
    });
    for (auto& at : ranks)
      EXPECT_EQ(at.read(part(at.in, count)),
                std::vector<float>(count, static_cast<float>(turn % size + 1)));
    for (auto& at : ranks) at.set(at.in, static_cast<float>(at.rank + 1));
    in_turn(ranks, [](Rank& at) {
      return at.group.all_to_all_async(at.in, at.out, {}, {}, {.stream = at.work_stream()});
    });
    for (auto& at : ranks) {
      std::vector<float> want;
      for (int r = 0; r < size; ++r) want.insert(want.end(), count, static_cast<float>(r + 1));
      EXPECT_EQ(at.read(at.out), want) << at.rank;
    }
  }
  end(std::move(ranks));
}

// The second call of a rank follows its first, which NCCL may still be queueing.
TEST_F(OneThread, MayMakeSeveralCallsOfARankBeforeThoseOfTheNextOnceTheyAreConnected) {
  auto ranks = make_ranks(10s);
  for (auto& at : ranks) at.set(at.in, 1);
  std::vector<Work> works;
  for (auto& at : ranks)
    for (int call = 0; call < 3; ++call)
      works.push_back(at.group.all_reduce_async(part(at.in, count), ReduceOp::sum,
                                                {.stream = at.work_stream()}));
  for (auto& work : works) work.wait();
  for (auto& at : ranks)
    EXPECT_EQ(at.read(part(at.in, count)), std::vector<float>(count, size * size * size));
  end(std::move(ranks));
}

TEST_F(OneThread, KeepsTheDeadlineOfACallThatItDoesNotMakeForAllRanks) {
  auto ranks = make_ranks(1500ms);
  const auto start = std::chrono::steady_clock::now();
  // This is the first broadcast, so NCCL waits for rank 3 to connect.
  std::vector<Work> works;
  for (auto& at : ranks)
    if (at.rank != 3)
      works.push_back(
          at.group.broadcast_async(part(at.in, count), 0, {.stream = at.work_stream()}));
  EXPECT_LT(std::chrono::steady_clock::now() - start, 1200ms) << "a call waited for the next rank";
  for (auto& work : works) expect_error(Errc::timeout, {"missing: 3"}, [&] { work.wait(); });
  ranks[3].group.abort("the others have");
  end(std::move(ranks));
}

}  // namespace
}  // namespace tutti::test::nccl_double
