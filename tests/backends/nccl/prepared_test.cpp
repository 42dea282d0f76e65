#include <atomic>
#include <optional>

#include "backend/fingerprint.hpp"
#include "backends/nccl/groups.hpp"
#include "cuda/memory.hpp"
#include "values/hash.hpp"

// Launches of prepared lists, over the double: the first is an ordinary call, the second captures a
// CUDA graph, and the later ones launch it.

namespace tutti::test::nccl_double {
namespace {

constexpr std::int64_t count = 100;
constexpr std::uint64_t launches = 5;
const auto in_time = 3s;  // Far below the 10 s after which an abort that hangs is given up.

using List = std::vector<Op>;

/// One rank of a backend, and its objects.
struct Rank {
  std::unique_ptr<Backend>& backend;
  int rank;
  cudaStream_t stream;
  cudaStream_t other;
  std::unique_ptr<Kept> kept{};  ///< Of its prepared list,
  int launches = 0;              ///< and of this.
  std::uint64_t seq = 0;

  TensorView make(std::int64_t n = count) const {
    void* data = backend->memory().allocate(static_cast<std::size_t>(n) * sizeof(float), {stream});
    return {data, DType::f32, {n}, backend->memory().device()};
  }
  void free(const TensorView& array) const {
    cuda().free_async(array.data, stream);  // The backend may have ended.
  }
  void fill(const TensorView& array, float value, std::chrono::nanoseconds takes = {}) const {
    nccl_double::fill(stream, static_cast<float*>(array.data),
                      static_cast<std::size_t>(array.shape.numel()), value, takes);
  }
  std::vector<float> read(const TensorView& array, cudaStream_t on) const {
    std::vector<float> values(static_cast<std::size_t>(array.shape.numel()));
    backend->memory().copy(values.data(), array.data, array.bytes(), {on});
    return values;
  }
  std::vector<float> read(const TensorView& array) const { return read(array, stream); }

  Work call(const List& ops, Call options) {
    options.seq = seq++;
    if (options.stream.handle == nullptr) options.stream = {stream};
    if (options.timeout == 0s) options.timeout = 10s;
    internal::Hash hash;
    for (const auto& op : ops) internal::add(hash, op);
    options.fingerprint = internal::finish_hash(hash, options);
    Work work = backend->launch(ops, options);
    if (options.blocking) work.block_stream(options.stream);  // As the front does.
    return work;
  }
  Work launch(const List& ops, Call options = {}) {
    options.kept = &kept;
    options.prepared = std::min(++launches, 3);
    return call(ops, options);
  }
};

/// Runs `body` on threads that are ranks of a new backend, which it may end.
void on_ranks(int size, const std::function<void(Rank& at)>& body, const GroupSetup& setup = {}) {
  const auto store = make_memory_store();
  on_threads(size, [&](int rank) {
    cuda().set_device(rank);
    cudaStream_t stream = nullptr;
    cudaStream_t other = nullptr;
    cuda().stream_create_with_flags(&stream, cudaStreamNonBlocking);
    cuda().stream_create_with_flags(&other, cudaStreamNonBlocking);
    {
      auto backend = make_backend(rank, size, store, setup);
      Rank at{backend, rank, stream, other};
      body(at);
    }
    cuda().stream_synchronize(stream);
    cuda().stream_synchronize(other);
    cuda().stream_destroy(stream);
    cuda().stream_destroy(other);
  });
}

Op sum_of(const TensorView& in, const TensorView& out) {
  return {.kind = Operation::all_reduce, .in = in, .out = out};
}
TensorView part(const TensorView& of, std::int64_t from, std::int64_t n) {
  return {static_cast<float*>(of.data) + from, DType::f32, {n}, of.device};
}

class PreparedLists : public Double {
 protected:
  PreparedLists() { set_issues_on_a_thread(true); }

  /// Launches the list so often that it is a graph.
  static void warm_up(Rank& at, const List& list) {
    for (int n = 0; n < 3; ++n) at.launch(list).wait();
  }
};

TEST_F(PreparedLists, EachLaunchSeesItsInputsAlsoWithScratchMemory) {
  constexpr int size = 3;
  on_ranks(size, [](Rank& at) {
    const std::vector<std::int64_t> counts{2, 0, 3};
    const TensorView in = at.make();
    const TensorView out = at.make();
    const TensorView lanes = at.make();
    const TensorView least = at.make(7);
    const TensorView rows = at.make(5);
    const auto mine = counts[static_cast<std::size_t>(at.rank)];
    const List list{
        sum_of(in, out),
        {.kind = Operation::all_reduce, .in = in, .out = lanes, .reduce = ReduceOp::premul(2)},
        {.kind = Operation::all_reduce,  // By a kernel of the library.
         .in = part(in, 0, 7),
         .out = least,
         .reduce = ReduceOp::min},
        {.kind = Operation::all_gather,  // By padded slots.
         .in = part(in, 0, mine),
         .out = rows,
         .rows = counts}};
    for (std::uint64_t n = 0; n < launches; ++n) {
      const auto base = static_cast<float>(1 + 10 * n);
      at.fill(in, base + static_cast<float>(at.rank), 2ms);
      Work work = at.launch(list, {.blocking = n % 2 == 1});
      if (n % 2 == 0) work.block_stream({at.stream});
      const float all = 3 * base + 3;
      EXPECT_EQ(at.read(out), std::vector<float>(count, all)) << n;
      EXPECT_EQ(at.read(lanes), std::vector<float>(count, 2 * all)) << n;
      EXPECT_EQ(at.read(least), std::vector<float>(7, base)) << n;
      EXPECT_EQ(at.read(rows), (std::vector{base, base, base + 2, base + 2, base + 2})) << n;
    }
    for (const auto& array : {in, out, lanes, least, rows}) at.free(array);
  });
}

TEST_F(PreparedLists, ALaterLaunchIsOneLaunchOfAGraphForAnyNumberOfCalls) {
  constexpr int size = 2;
  RankBarrier barrier(size);
  on_ranks(size, [&](Rank& at) {
    List list;
    std::vector<TensorView> arrays;
    for (int i = 0; i < 50; ++i) {
      arrays.push_back(at.make(4));
      at.fill(arrays.back(), 1);
      list.push_back(sum_of(arrays.back(), arrays.back()));
    }
    const auto counts = [&](const char* function) {
      barrier.wait();
      const int n = calls(function);
      barrier.wait();
      return n;
    };
    const int graphs = counts("cudaGraphLaunch");
    at.launch(list).wait();
    EXPECT_EQ(counts("cudaGraphLaunch"), graphs);
    at.launch(list).wait();
    EXPECT_EQ(counts("cudaGraphLaunch"), graphs + size);
    const std::vector<const char*> of_nccl{"ncclGroupStart", "ncclGroupEnd", "ncclAllReduce",
                                           "cudaStreamBeginCapture"};
    std::vector<int> before;
    for (const char* function : of_nccl) before.push_back(counts(function));
    for (const bool blocking : {false, true}) {
      std::vector<std::string> fewest(
          1000);  // A launch may have to make an event, which later ones use again.
      for (int n = 0; n < 5; ++n) {
        Work work;
        auto names = calls_in([&] { work = at.launch(list, {.blocking = blocking}); });
        if (names.size() < fewest.size()) fewest = std::move(names);
        work.wait();
        std::this_thread::sleep_for(3ms);  // Until the group's thread has released the events.
      }
      std::vector<std::string> want{"cudaGetDevice",   "cudaStreamIsCapturing",
                                    "cudaEventRecord", "cudaStreamWaitEvent",
                                    "cudaGraphLaunch", "cudaEventRecord"};
      if (blocking) want.erase(want.begin() + 2, want.begin() + 4);  // On the caller's stream.
      EXPECT_EQ(fewest, want);
    }
    EXPECT_EQ(counts("cudaGraphLaunch"), graphs + 11 * size);
    for (std::size_t i = 0; i < of_nccl.size(); ++i)
      EXPECT_EQ(counts(of_nccl[i]), before[i]) << of_nccl[i];
    for (const auto& array : arrays) {
      EXPECT_EQ(at.read(array), std::vector<float>(4, 4096));
      at.free(array);
    }
  });
}

// The program does not order the two streams.
TEST_F(PreparedLists, ALaunchIsInOrderWithTheCallsOfOtherStreams) {
  on_ranks(2, [](Rank& at) {
    const TensorView x = at.make();
    const TensorView y = at.make();
    const TensorView z = at.make();
    for (const auto& array : {x, y, z}) at.fill(array, 1);
    cuda().stream_synchronize(at.stream);
    for (int n = 0; n < 4; ++n) {
      for (const bool blocking : {false, true}) {
        at.fill(x, 1, 20ms);
        (void)at.call({sum_of(x, x)}, {.blocking = blocking});
        Work work = at.launch({sum_of(x, y)}, {.stream = {at.other}, .blocking = blocking});
        (void)at.call({sum_of(y, z)}, {.blocking = blocking}).wait();
        work.wait();
        EXPECT_EQ(at.read(z), std::vector<float>(count, 8)) << n;
      }
    }
    for (const auto& array : {x, y, z}) at.free(array);
  });
}

TEST_F(PreparedLists, MayBeLaunchedAgainWhileALaunchIsPending) {
  on_ranks(2, [](Rank& at) {
    const TensorView data = at.make();
    const List list{sum_of(data, data)};
    at.fill(data, 1, slow);
    std::vector<Work> works;
    for (std::uint64_t n = 0; n < launches; ++n) works.push_back(at.launch(list));
    EXPECT_FALSE(works[0].done());
    for (auto& work : works) work.wait();
    EXPECT_EQ(at.read(data), std::vector<float>(count, 32));
    at.free(data);
  });
}

TEST_F(PreparedLists, AGroupOfOneRankReplaysItsCopies) {
  const int graphs = calls("cudaGraphLaunch");
  on_ranks(1, [](Rank& at) {
    const TensorView in = at.make();
    const TensorView out = at.make();
    const TensorView twice = at.make();
    List list{
        sum_of(in, out),
        {.kind = Operation::all_reduce, .in = in, .out = twice, .reduce = ReduceOp::premul(2)}};
    for (std::uint64_t n = 0; n < launches; ++n) {
      at.fill(in, static_cast<float>(n));
      (void)at.launch(list, {.blocking = true});
      EXPECT_EQ(at.read(out), std::vector<float>(count, static_cast<float>(n)));
      EXPECT_EQ(at.read(twice), std::vector<float>(count, static_cast<float>(2 * n)));
    }
    for (const auto& array : {in, out, twice}) at.free(array);
  });
  EXPECT_EQ(calls("cudaGraphLaunch"), graphs + static_cast<int>(launches) - 1);
}

TEST_F(PreparedLists, ListsThatNeedTheHostAreOrdinaryCallsEachTime) {
  const int graphs = calls("cudaGraphLaunch");
  on_ranks(2, [](Rank& at) {
    const TensorView in = at.make(1);
    const TensorView out = at.make(2);
    const std::vector<std::int64_t> most{1, 1};
    const List bounded{{.kind = Operation::all_gather_bounded, .in = in, .out = out, .rows = 1}};
    const List barrier{{.kind = Operation::barrier}};
    std::unique_ptr<Kept> place;
    for (std::uint64_t n = 0; n < launches; ++n) {
      at.fill(in, static_cast<float>(at.rank) + static_cast<float>(10 * n));
      at.launch(bounded, {.blocking = true}).wait();
      EXPECT_EQ(at.read(out),
                (std::vector{static_cast<float>(10 * n), static_cast<float>(10 * n + 1)}));
      (void)at.call(barrier, {.blocking = true, .kept = &place});
    }
    at.free(in);
    at.free(out);
  });
  EXPECT_EQ(calls("cudaGraphLaunch"), graphs);
}

TEST_F(PreparedLists, ALaunchOnACapturingStreamIsPartOfTheGraphOfTheProgram) {
  constexpr int size = 2;
  RankBarrier barrier(size);
  const int graphs = calls("cudaGraphLaunch");
  on_ranks(size, [&](Rank& at) {
    const TensorView data = at.make();
    const List list{sum_of(data, data)};
    for (int n = 0; n < 3; ++n) {  // Before the first launch, the capture, and a replay.
      Graph graph;
      EXPECT_EQ(begin_capture(at.stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
      (void)at.launch(list, {.blocking = true});
      EXPECT_EQ(end_capture(at.stream, &graph), cudaSuccess);
      at.fill(data, 1);
      for (int i = 0; i < 2; ++i) launch(graph, at.stream);
      EXPECT_EQ(at.read(data), std::vector<float>(count, 4));
      EXPECT_EQ(at.kept != nullptr, n > 0);
      graph.reset();
      at.launch(list).wait();
      EXPECT_EQ(at.read(data), std::vector<float>(count, 8));
    }
    at.free(data);
    barrier.wait();
  });
  EXPECT_EQ(calls("cudaGraphLaunch"), graphs + 2 * size);
}

TEST_F(PreparedLists, ADeadlineNamesTheRankThatDoesNotLaunch) {
  RankBarrier barrier(2);
  on_ranks(2, [&](Rank& at) {
    const TensorView data = at.make();
    const List list{sum_of(data, data)};
    warm_up(at, list);
    const auto limit = Deadline::after(in_time);
    if (at.rank == 0) {
      const auto error = expect_error(Errc::timeout, {"missing: 1", "all_reduce #3"},
                                      [&] { at.launch(list, {.timeout = 200ms}).wait(); });
      EXPECT_EQ(error.message().find("destroy"), std::string::npos) << error.what();
    }
    barrier.wait();
    if (at.rank == 1)  // Its idle thread may have found the cause by itself.
      expect_error({Errc::timeout, Errc::aborted}, {"missing: 1"}, [&] { at.launch(list).wait(); });
    EXPECT_FALSE(limit.expired());
    at.free(data);
  });
}

TEST_F(PreparedLists, AnAbortDestroysTheGraphsOfListsThatAreAlive) {
  RankBarrier barrier(2);
  on_ranks(2, [&](Rank& at) {
    const TensorView data = at.make();
    const TensorView rows = at.make(4);
    const std::vector<std::int64_t> counts{1, 3};
    const List list{sum_of(data, data),
                    {.kind = Operation::all_gather,
                     .in = part(data, 0, at.rank == 0 ? 1 : 3),
                     .out = rows,
                     .rows = counts}};
    warm_up(at, list);
    barrier.wait();
    const auto limit = Deadline::after(in_time);
    if (at.rank == 1) at.backend->abort("it goes");
    const auto error = expect_error(Errc::aborted, {"it goes"}, [&] { at.launch(list).wait(); });
    EXPECT_EQ(error.message().find("destroy"), std::string::npos) << error.what();
    EXPECT_FALSE(limit.expired());
    if (at.rank == 1) at.backend.reset();  // Before its list.
    at.kept.reset();
    EXPECT_FALSE(limit.expired());
    at.free(data);
    at.free(rows);
    barrier.wait();
  });
}

// NCCL waits for a rank that makes no call while the list's second launch is captured.
TEST_F(PreparedLists, AnAbortEndsALaunchThatIsBeingCapturedAlsoIfItsListHasEnded) {
  for (const bool list_ends : {false, true}) {
    RankBarrier barrier(2);
    on_ranks(2, [&](Rank& at) {
      const TensorView data = at.make();
      const TensorView least = at.make();
      const List list{
          sum_of(data, data),
          {.kind = Operation::all_reduce, .in = least, .out = least, .reduce = ReduceOp::min}};
      at.launch(list).wait();
      if (at.rank == 0) {
        set_faults(0, {.stays_in_progress = true});
        const auto limit = Deadline::after(in_time);
        Work work = at.launch(list);
        if (list_ends) at.kept.reset();
        barrier.wait();
        expect_error(Errc::aborted, {"it goes"}, [&] { work.wait(); });
        EXPECT_FALSE(limit.expired());
        set_faults(0, {});
      } else {
        barrier.wait();
        at.backend->abort("it goes");
      }
      barrier.wait();
      at.free(data);
      at.free(least);
    });
  }
}

TEST_F(PreparedLists, AListMayEndWhileItsLaunchWaitsForAPeer) {
  RankBarrier barrier(2);
  on_ranks(2, [&](Rank& at) {
    const TensorView data = at.make();
    const List list{sum_of(data, data)};
    warm_up(at, list);
    if (at.rank == 0) {
      const auto limit = Deadline::after(in_time);
      Work work = at.launch(list, {.timeout = 200ms});
      at.kept.reset();
      expect_error(Errc::timeout, {"missing: 1", "all_reduce #3"}, [&] { work.wait(); });
      EXPECT_FALSE(limit.expired());
    }
    barrier.wait();
    at.free(data);
  });
}

TEST_F(PreparedLists, AFailureToMakeTheGraphBreaksTheGroup) {
  static backend::nccl::CudaApi mutated;
  mutated = *apis().cuda;
  mutated.graph_instantiate_with_flags = [](cudaGraphExec_t*, cudaGraph_t, unsigned long long) {
    return cudaErrorMemoryAllocation;
  };
  on_ranks(2,
           [](Rank& at) {
             const TensorView data = at.make();
             const List list{sum_of(data, data)};
             at.launch(list).wait();
             expect_error({Errc::resource_exhausted, Errc::aborted},
                          {"resource_exhausted", "cudaGraphInstantiateWithFlags"},
                          [&] { at.launch(list).wait(); });
             at.free(data);
           },
           {.apis = {apis().nccl, &mutated, apis().driver, apis().fold_image}});
}

TEST_F(PreparedLists, AGroupEndsAtOnceBeforeItsLists) {
  const int destroyed = calls("ncclCommDestroy");
  const int aborted = calls("ncclCommAbort");
  std::mutex mutex;
  std::string log;
  RankBarrier barrier(2);
  on_ranks(
      2,
      [&](Rank& at) {
        const TensorView data = at.make();
        const TensorView least = at.make();
        const List list{
            sum_of(data, data),
            {.kind = Operation::all_reduce, .in = least, .out = least, .reduce = ReduceOp::min}};
        warm_up(at, list);
        const Work last = at.launch(list);
        barrier.wait();
        const auto limit = Deadline::after(in_time);
        at.backend.reset();
        EXPECT_FALSE(limit.expired());
        barrier.wait();
        EXPECT_EQ(calls("ncclCommDestroy"), destroyed + 2);
        EXPECT_TRUE(last.done());
        at.kept.reset();
        at.free(data);
        at.free(least);
        barrier.wait();
      },
      {.logger = [&](LogLevel, std::string_view text) {
        const std::lock_guard lock(mutex);
        log += text;
      }});
  EXPECT_EQ(calls("ncclCommAbort"), aborted);
  EXPECT_EQ(log.find("graph"), std::string::npos) << log;
}

TEST_F(PreparedLists, AListMayEndWhileItsLaunchIsPending) {
  on_ranks(2, [](Rank& at) {
    const TensorView data = at.make();
    const TensorView least = at.make();
    const List list{
        sum_of(data, data),
        {.kind = Operation::all_reduce, .in = data, .out = least, .reduce = ReduceOp::min}};
    for (int n = 0; n < 3; ++n) {
      at.fill(data, 1, 30ms);
      for (int i = 0; i <= n; ++i) (void)at.launch({list[0]});
      Work after = at.call({list[0]}, {});
      at.kept.reset();
      after.wait();
      EXPECT_EQ(at.read(data), std::vector<float>(count, static_cast<float>(4 << n)));
      at.fill(data, 2);
      warm_up(at, {list[1]});
      at.fill(data, 2, 30ms);
      Work last = at.launch({list[1]});
      at.kept.reset();
      last.wait();
      EXPECT_EQ(at.read(least), std::vector<float>(count, 2));
    }
    at.free(data);
    at.free(least);
  });
}

TEST_F(PreparedLists, AnOrdinaryCallOfAnotherRankIsAMismatch) {
  on_ranks(2, [](Rank& at) {
    const TensorView data = at.make();
    const List list{sum_of(data, data)};
    warm_up(at, list);
    Work work = at.rank == 0 ? at.launch(list) : at.call(list, {});
    const auto limit = Deadline::after(in_time);
    while (!at.backend->failure() && !limit.expired()) std::this_thread::sleep_for(1ms);
    expect_error({Errc::mismatch, Errc::aborted},
                 {"mismatch", "rank 0: all_reduce #3 sum f32 400 B prepared (a later launch)"},
                 [&] { at.call(list, {}).wait(); });
    at.kept.reset();
    at.free(data);
  });
  take_violations();  // Of the double, which tells graphs from other calls.
}

/// Memory of the program, which fails the test where its stream is captured.
class OwnMemory final : public Memory {
 public:
  Device device() const noexcept override { return memory().device(); }
  void* allocate(std::size_t bytes, Stream stream) override {
    check(stream);
    ++blocks;
    return memory().allocate(bytes, stream);
  }
  void release(void* data, std::size_t bytes, Stream stream) noexcept override {
    check(stream);
    --blocks;
    memory().release(data, bytes, stream);
  }
  void copy(void* to, const void* from, std::size_t bytes, Stream stream) override {
    memory().copy(to, from, bytes, stream);
  }
  std::atomic<int> blocks = 0;

 private:
  static Memory& memory() { return backend::cuda::cuda_memory(cuda(), 0); }
  static void check(Stream stream) {
    auto status = cudaStreamCaptureStatusNone;
    cuda().stream_is_capturing(static_cast<cudaStream_t>(stream.handle), &status);
    EXPECT_EQ(status, cudaStreamCaptureStatusNone);
  }
};

TEST_F(PreparedLists, ScratchMemoryOfTheProgramIsNotPartOfTheGraph) {
  OwnMemory memory;
  on_threads(1, [&](int) {
    cuda().set_device(0);
    auto backend = backend::nccl::make_nccl({.store = make_memory_store(),
                                             .rank = 0,
                                             .size = 1,
                                             .name = "own",
                                             .device = {DeviceType::cuda, 0},
                                             .memory = &memory,
                                             .timeout = 10s,
                                             .logger = [](LogLevel, std::string_view) {}},
                                            apis());
    cudaStream_t stream = nullptr;
    cuda().stream_create_with_flags(&stream, cudaStreamNonBlocking);
    {
      Rank at{backend, 0, stream, stream};
      const TensorView data = at.make();
      const int before = memory.blocks;
      const List list{{.kind = Operation::scan, .in = data, .out = data}};
      at.fill(data, 5);
      at.launch(list).wait();
      EXPECT_EQ(memory.blocks, before);
      for (int n = 0; n < 3; ++n) at.launch(list).wait();
      EXPECT_EQ(memory.blocks, before + 1);
      EXPECT_EQ(at.read(data), std::vector<float>(count, 5));
      at.kept.reset();
      EXPECT_EQ(memory.blocks, before);
      at.free(data);
      cuda().stream_synchronize(stream);
    }
    backend.reset();
    cuda().stream_destroy(stream);
  });
}

// NCCL waits for the other ranks in the first call, and again in the capture.
TEST_F(PreparedLists, OneThreadMayLaunchTheListsOfAllRanksInTurn) {
  set_issues_on_a_thread(false);
  set_connects_each_function(true);
  constexpr int size = 4;
  const auto store = make_memory_store();
  std::vector<std::unique_ptr<Backend>> backends(size);
  on_threads(size, [&](int rank) {
    backends[static_cast<std::size_t>(rank)] = make_backend(rank, size, store, {});
  });
  std::vector<Rank> ranks;
  std::vector<TensorView> arrays;
  for (int r = 0; r < size; ++r) {
    cuda().set_device(r);
    cudaStream_t stream = nullptr;
    cuda().stream_create_with_flags(&stream, cudaStreamNonBlocking);
    ranks.push_back({backends[static_cast<std::size_t>(r)], r, stream, stream});
    arrays.push_back(ranks.back().make());
  }
  const auto each = [&](const auto& f) {
    for (std::size_t r = 0; r < size; ++r) {
      cuda().set_device(static_cast<int>(r));
      f(ranks[r], arrays[r]);
    }
  };
  const int graphs = calls("cudaGraphLaunch");
  for (std::uint64_t n = 0; n < launches; ++n) {
    std::vector<Work> works;
    each([&](Rank& at, const TensorView& data) {
      at.fill(data, static_cast<float>(n));
      works.push_back(at.launch({sum_of(data, data)}));
    });
    for (std::size_t r = 0; r < size; ++r) works[r].block_stream({ranks[r].stream});
    for (auto& work : works) work.wait();
    each([&](Rank& at, const TensorView& data) {
      EXPECT_EQ(at.read(data), std::vector<float>(count, static_cast<float>(size * n)));
    });
  }
  EXPECT_EQ(calls("cudaGraphLaunch"), graphs + size * static_cast<int>(launches - 1));
  each([](Rank& at, const TensorView& data) {
    at.free(data);
    cuda().stream_synchronize(at.stream);
    cuda().stream_destroy(at.stream);
  });
  ranks.clear();
  on_threads(size, [&](int rank) { backends[static_cast<std::size_t>(rank)].reset(); });
}

}  // namespace
}  // namespace tutti::test::nccl_double
