#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "backends/nccl/groups.hpp"

// The stream of a call: its caller's or the group's own. On either, the calls of a group have one
// order, and an abort waits for all of them.

namespace tutti::test::nccl_double {
namespace {

/// The time for which a stream is busy, to detect work that runs too early.
constexpr auto busy_time = 200ms;

/// Stands for a stream of each rank, as a handle that CUDA gives to one stream after another.
cudaStream_t alias() {
  static int handle = 0;
  return reinterpret_cast<cudaStream_t>(&handle);
}

int current_device() {
  int device = 0;
  cuda().get_device(&device);
  return device;
}

class CallersStream : public Double {
 protected:
  static constexpr int size = 2;

  CallersStream() {
    const std::lock_guard lock(mutex);
    theirs.clear();
  }

  // The tables below have no state of their own.
  static inline std::mutex mutex;
  static inline std::set<cudaStream_t> theirs;  ///< The streams of the program.
  static inline std::array<std::atomic<cudaStream_t>, device_count> used;  ///< By NCCL, last.
  static inline std::array<std::atomic<cudaStream_t>, device_count> real;  ///< Of an alias.

  static bool is_theirs(cudaStream_t stream) {
    const std::lock_guard lock(mutex);
    return theirs.contains(stream);
  }
  static void add_streams(const Member& at) {
    const std::lock_guard lock(mutex);
    theirs.insert({at.compute, at.other});
  }
  static cudaStream_t resolve(cudaStream_t stream) {
    if (stream != alias() && stream != cudaStreamPerThread) return stream;
    return real.at(static_cast<std::size_t>(current_device()));
  }

  static void resolve_streams(backend::nccl::CudaApi& c) {
    c.stream_is_capturing = [](cudaStream_t stream, cudaStreamCaptureStatus* status) {
      return cuda().stream_is_capturing(resolve(stream), status);
    };
    c.stream_wait_event = [](cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
      return cuda().stream_wait_event(resolve(stream), event, flags);
    };
    c.event_record = [](cudaEvent_t event, cudaStream_t stream) {
      return cuda().event_record(event, resolve(stream));
    };
  }

  /// The double, with other functions of CUDA or NCCL. It lives for ever.
  template <typename Change>
  static GroupSetup changed(Change change) {
    struct Tables {
      backend::nccl::NcclApi nccl = nccl_double::nccl();
      backend::nccl::CudaApi cuda = nccl_double::cuda();
    };
    static std::vector<std::unique_ptr<Tables>> all;
    Tables& tables = *all.emplace_back(std::make_unique<Tables>());
    change(tables.nccl, tables.cuda);
    GroupSetup setup;
    setup.apis.nccl = &tables.nccl;
    setup.apis.cuda = &tables.cuda;
    return setup;
  }

  static GroupSetup that_notes_streams() {
    return changed([](backend::nccl::NcclApi& n, backend::nccl::CudaApi&) {
      n.all_reduce = [](const void* in, void* out, std::size_t count, ncclDataType_t type,
                        ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
        used.at(static_cast<std::size_t>(current_device())) = stream;
        return nccl().all_reduce(in, out, count, type, op, comm, stream);
      };
      n.all_gather = [](const void* in, void* out, std::size_t count, ncclDataType_t type,
                        ncclComm_t comm, cudaStream_t stream) {
        used.at(static_cast<std::size_t>(current_device())) = stream;
        return nccl().all_gather(in, out, count, type, comm, stream);
      };
      n.broadcast = [](const void* in, void* out, std::size_t count, ncclDataType_t type, int root,
                       ncclComm_t comm, cudaStream_t stream) {
        used.at(static_cast<std::size_t>(current_device())) = stream;
        return nccl().broadcast(in, out, count, type, root, comm, stream);
      };
      n.send = [](const void* data, std::size_t count, ncclDataType_t type, int peer,
                  ncclComm_t comm, cudaStream_t stream) {
        used.at(static_cast<std::size_t>(current_device())) = stream;
        return nccl().send(data, count, type, peer, comm, stream);
      };
    });
  }

  /// An array whose content the host has seen.
  static TensorView make(const Member& at, float value) {
    const TensorView made = at.make();
    at.fill(made, value);
    cuda().stream_synchronize(at.compute);
    return made;
  }

  /// Three calls on three streams, each of which needs the result of the previous one. The program
  /// does not order the streams.
  static void chain(const GroupSetup& setup, bool check) {
    on_groups(
        size,
        [&](const Member& at) {
          add_streams(at);
          const TensorView x = make(at, 1);
          const TensorView y = make(at, 0);
          const TensorView z = make(at, 0);
          const TensorView u = make(at, 0);
          const TensorView v = make(at, 0);
          // The host has not seen a call end when the next one is made.
          at.fill(u, 1, busy_time);
          fill(at.other, static_cast<float*>(v.data), Member::count, 1, busy_time);
          Work first = at.group.all_reduce_async(x, y, ReduceOp::sum, {.stream = at.stream()});
          at.group.all_reduce(y, z, ReduceOp::sum, {.stream = {at.other}});
          Work last = at.group.all_reduce_async(z, x, ReduceOp::sum, {.stream = at.stream()});
          last.wait();
          first.wait();
          EXPECT_TRUE(!check || at.holds(x, 8));
          cuda().stream_synchronize(at.other);
          for (const TensorView& array : {x, y, z, u, v}) at.free(array);
        },
        setup);
  }

  /// Where a stream of the program is.
  class Mark {
   public:
    explicit Mark(cudaStream_t stream) {
      cuda().event_create_with_flags(&event_, cudaEventDisableTiming);
      cuda().event_record(event_, stream);
    }
    ~Mark() { cuda().event_destroy(event_); }
    Mark(const Mark&) = delete;
    Mark& operator=(const Mark&) = delete;
    bool passed() const {
      const bool done = cuda().event_query(event_) == cudaSuccess;
      cuda().get_last_error();
      return done;
    }

   private:
    cudaEvent_t event_ = nullptr;
  };

  /// Rank 0 calls on a busy stream; rank 1 makes no call and aborts. True when no work runs on that
  /// stream after rank 0 got the error: from an earlier call on the group's own stream, or from the
  /// call itself when NCCL does not queue it.
  static bool is_blocked(const GroupSetup& setup, bool queued,
                         std::chrono::nanoseconds takes = busy_time) {
    RankBarrier barrier(size);
    std::atomic<bool> stood = false;
    on_groups(
        size,
        [&](const Member& at) {
          add_streams(at);
          const TensorView a = make(at, 1);
          const TensorView b = make(at, 1);
          const int before = calls("ncclGroupEnd");
          barrier.wait();
          if (at.rank == 0) {
            if (!queued) set_faults(0, {.stays_in_progress = true});
            Work earlier;
            if (queued) earlier = at.group.all_reduce_async(a);
            at.fill(b, 2, takes);
            const Mark busy(at.compute);
            const auto call = [&] {
              at.group.all_reduce(b, ReduceOp::sum, {.stream = at.stream()});
            };
            if (queued) call();
            if (queued) barrier.wait();
            expect_error(Errc::aborted, {"enough"}, [&] {
              if (!queued) call();
              earlier.wait();
            });
            stood = busy.passed();
          } else {
            if (queued) barrier.wait();
            while (!queued && calls("ncclGroupEnd") == before) std::this_thread::yield();
            at.group.abort("enough");
          }
          barrier.wait();
          cuda().stream_synchronize(at.compute);
          if (at.rank == 0) set_faults(0, {});
          at.free(a);
          at.free(b);
        },
        setup);
    return stood;
  }
};

TEST_F(CallersStream, ABlockingCallWithoutScratchMemoryRunsOnIt) {
  on_groups(
      size,
      [](const Member& at) {
        const TensorView data = at.make();
        const TensorView all = at.make(3);
        const TensorView one{data.data, DType::f32, {1}, data.device};
        const TensorView mine{data.data, DType::f32, {at.rank + 1}, data.device};
        const TensorView only{data.data, DType::f32, {at.rank}, data.device};
        const TensorView two{all.data, DType::f32, {2}, data.device};
        cuda().stream_synchronize(at.compute);
        const auto stream_of = [&](const auto& call) {
          call();
          cuda().stream_synchronize(at.compute);
          return used.at(static_cast<std::size_t>(at.rank)).load();
        };
        const CallOptions on_compute{.stream = at.stream()};
        ProcessGroup& group = at.group;
        EXPECT_EQ(stream_of([&] { group.all_reduce(data, ReduceOp::sum, on_compute); }),
                  at.compute);
        EXPECT_EQ(stream_of([&] { group.broadcast(data, 0, {.stream = {at.other}}); }), at.other);
        cuda().stream_synchronize(at.other);
        EXPECT_EQ(stream_of([&] { group.all_gather(one, two, {}, on_compute); }), at.compute);
        EXPECT_EQ(stream_of([&] {
                    group.all_gather(only, one, {0, 1}, on_compute);  // One broadcast.
                  }),
                  at.compute);
        const cudaStream_t own =
            stream_of([&] { group.all_reduce_async(data, ReduceOp::sum, on_compute).wait(); });
        EXPECT_NE(own, at.compute);
        // The default stream, a kernel of our own, padded slots.
        EXPECT_EQ(stream_of([&] {
                    group.all_reduce(data);
                    cuda().stream_synchronize(nullptr);
                  }),
                  own);
        EXPECT_EQ(stream_of([&] { group.all_reduce(data, ReduceOp::max, on_compute); }), own);
        EXPECT_EQ(stream_of([&] { group.all_gather(mine, all, {1, 2}, on_compute); }), own);
        at.free(data);
        at.free(all);
      },
      that_notes_streams());
}

TEST_F(CallersStream, TheCallsOfAGroupAreOneOrderOnAllStreams) {
  chain({}, true);
}

TEST_F(CallersStream, ACallThatIsNotPutBehindTheGroupsStreamIsNoticed) {
  chain(changed([](backend::nccl::NcclApi&, backend::nccl::CudaApi& c) {
          c.stream_wait_event = [](cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
            return is_theirs(stream) ? cudaSuccess : cuda().stream_wait_event(stream, event, flags);
          };
        }),
        false);
  expect_violation({"race: ncclAllReduce", "race: cudaFreeAsync"});
}

TEST_F(CallersStream, AStreamWithTheHandleOfAnEarlierOneIsAnotherStream) {
  const GroupSetup setup = changed([](backend::nccl::NcclApi& n, backend::nccl::CudaApi& c) {
    n.all_reduce = [](const void* in, void* out, std::size_t count, ncclDataType_t type,
                      ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
      return nccl().all_reduce(in, out, count, type, op, comm, resolve(stream));
    };
    resolve_streams(c);
  });
  on_groups(
      size,
      [](const Member& at) {
        const TensorView x = make(at, 1);
        const TensorView y = make(at, 0);
        auto& stream = real.at(static_cast<std::size_t>(at.rank));
        stream = at.compute;
        at.fill(x, 1, busy_time);
        at.group.all_reduce(x, y, ReduceOp::sum, {.stream = {alias()}});
        stream = at.other;
        at.group.all_reduce(y, x, ReduceOp::sum, {.stream = {alias()}});
        EXPECT_EQ(at.read(x, at.other), std::vector<float>(Member::count, 4));
        cuda().stream_synchronize(at.compute);
        at.free(x);
        at.free(y);
      },
      setup);
}

// NCCL queues on a thread of its own, where this handle is another stream.
TEST_F(CallersStream, NcclDoesNotGetTheDefaultStreamOfAThread) {
  const GroupSetup setup =
      changed([](backend::nccl::NcclApi&, backend::nccl::CudaApi& c) { resolve_streams(c); });
  on_groups(
      size,
      [](const Member& at) {
        const TensorView x = make(at, 1);
        real.at(static_cast<std::size_t>(at.rank)) = at.compute;
        at.group.all_reduce(x, ReduceOp::sum, {.stream = {cudaStreamPerThread}});
        EXPECT_TRUE(at.holds(x, 2));
        at.free(x);
      },
      setup);
}

TEST_F(CallersStream, MayBeDestroyedAsSoonAsACallHasReturned) {
  RankBarrier barrier(size);
  on_groups(size, [&](const Member& at) {
    const TensorView x = make(at, 1);
    // The call before runs on the group's stream or on one that is gone.
    for (int i = 0; i < 4; ++i) {
      if (i % 2 == 1) at.group.all_reduce_async(x).block_stream(at.stream());
      cuda().stream_synchronize(at.compute);
      cudaStream_t theirs = nullptr;
      cuda().stream_create_with_flags(&theirs, cudaStreamNonBlocking);
      fill(theirs, static_cast<float*>(x.data), Member::count, 1, 20ms);
      at.group.all_reduce(x, ReduceOp::sum, {.stream = {theirs}});
      cuda().stream_destroy(theirs);
      at.group.all_reduce(x, ReduceOp::sum, {.stream = at.stream()});
      EXPECT_TRUE(at.holds(x, 4));
    }
    // And before an abort.
    barrier.wait();
    if (at.rank == 0) {
      cudaStream_t theirs = nullptr;
      cuda().stream_create_with_flags(&theirs, cudaStreamNonBlocking);
      at.group.all_reduce(x, ReduceOp::sum, {.stream = {theirs}});
      cuda().stream_destroy(theirs);
      barrier.wait();
      expect_error(Errc::aborted, {"enough"}, [&] { at.group.barrier(); });
    } else {
      barrier.wait();
      at.group.abort("enough");
    }
    barrier.wait();
    at.free(x);
  });
}

// The call has been launched, so its arrays are in use until it has ended.
TEST_F(CallersStream, AnErrorAfterTheLaunchOfABlockingCallIsThrownAfterItsEnd) {
  static std::atomic<bool> fails;
  static backend::nccl::CudaApi table = *apis().cuda;
  table.stream_wait_event = [](cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
    if (fails && stream == nullptr) return cudaErrorUnknown;
    return cuda().stream_wait_event(stream, event, flags);
  };
  GroupSetup setup;
  setup.apis.cuda = &table;
  RankBarrier barrier(size);
  on_groups(
      size,
      [&](const Member& at) {
        const TensorView x = make(at, 1);
        cuda().stream_synchronize(at.compute);
        barrier.wait();
        fails = true;
        fill(nullptr, static_cast<float*>(x.data), Member::count, 1, busy_time);
        const auto start = SteadyClock::now();
        expect_error(Errc::backend, {"cudaStreamWaitEvent"}, [&] { at.group.all_reduce(x); });
        EXPECT_GT(SteadyClock::now() - start, busy_time / 2);
        barrier.wait();
        fails = false;
        at.free(x);
      },
      setup);
}

TEST_F(CallersStream, AnAbortWaitsForACallThatIsQueuedOnIt) {
  EXPECT_TRUE(is_blocked({}, true));
}

TEST_F(CallersStream, AnAbortWaitsForACallThatNcclHasNotQueuedYet) {
  EXPECT_TRUE(is_blocked({}, false));
}

// The abort must not wait for the stream on which the call was to be captured: the double would
// report it.
TEST_F(CallersStream, AnAbortLeavesACaptureAlone) {
  RankBarrier barrier(size);
  on_groups(size, [&](const Member& at) {
    const TensorView data = make(at, 1);
    barrier.wait();
    if (at.rank == 0) {
      set_faults(0, {.stays_in_progress = true});
      begin_capture(at.compute, cudaStreamCaptureModeThreadLocal);
      expect_error(Errc::timeout, {"deadline"}, [&] {
        at.group.all_reduce(data, ReduceOp::sum, {.stream = at.stream(), .deadline = 50ms});
      });
      Graph graph;
      end_capture(at.compute, &graph);
      set_faults(0, {});
    }
    barrier.wait();
    at.free(data);
  });
}

}  // namespace
}  // namespace tutti::test::nccl_double
