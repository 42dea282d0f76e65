#include <atomic>

#include "backends/nccl/groups.hpp"

// Backends that misuse NCCL or CUDA in one way each: the tables return wrong results or pass wrong
// arguments. The double has to report it; otherwise it would not report the same fault in the
// backend.

namespace tutti::test::nccl_double {
namespace {

/// A copy of the double's tables, to be changed.
struct Mutated {
  backend::nccl::NcclApi nccl = *nccl_double::apis().nccl;
  backend::nccl::CudaApi cuda = *nccl_double::apis().cuda;
  backend::nccl::DriverApi driver = *nccl_double::apis().driver;
  GroupSetup setup() const {
    return {.timeout = 1s, .apis = {&nccl, &cuda, &driver, nccl_double::apis().fold_image}};
  }
};

class Mutants : public Double {
 protected:
  static constexpr int size = 2;

  /// The calls of a group, whatever their results.
  static void use(const Mutated& mutated) {
    // Leaked on purpose: threads of a failed group may still call it.
    static std::vector<std::unique_ptr<Mutated>> all;
    all.push_back(std::make_unique<Mutated>(mutated));
    const auto store = make_memory_store();
    const GroupSetup setup = all.back()->setup();
    on_threads(size, [&](int rank) {
      cuda().set_device(rank);
      cudaStream_t compute = nullptr;
      cuda().stream_create_with_flags(&compute, cudaStreamNonBlocking);
      try {
        ProcessGroup group = make_group(rank, size, store, setup);
        const Member at{group, rank, compute, compute};
        try {
          use(at);
        } catch (const Error&) {  // NOLINT(bugprone-empty-catch): only the report counts.
        }
        group.abort("the test is over");
      } catch (const Error&) {  // NOLINT(bugprone-empty-catch)
      }
      cuda().stream_destroy(compute);
      cuda().get_last_error();
    });
    check_nothing_is_left(100ms);  // A fault may leave something.
  }

  static void use(const Member& at) {
    // The caller's device is its own business.
    cuda().set_device(device_count - 1 - at.rank);
    const TensorView in = at.make();
    const TensorView out = at.make();
    const TensorView all = at.make(3);
    const CallOptions options{.stream = at.stream()};
    at.fill(in, 1, 5ms);
    at.group.all_reduce(in, out, ReduceOp::sum, options);
    at.group.broadcast(out, 1, options);
    at.group.all_reduce(in, out, ReduceOp::premul(2), options);
    const TensorView mine{in.data, DType::f32, {at.rank + 1}, in.device};
    at.group.all_gather(mine, all, {1, 2}, options);
    at.fill(in, 1, 20ms);  // It still runs when the call is made, on a stream of the group.
    Work work = at.group.all_reduce_async(in, out, ReduceOp::sum, options);
    work.wait();
    at.group.all_reduce(in, out, ReduceOp::max, options);
    at.group.barrier();
    for (const TensorView& array : {in, out, all}) at.free(array);
    cuda().stream_synchronize(at.compute);
    cuda().set_device(at.rank);
  }

  /// The reports have all `texts` in them, each somewhere.
  static void expect_reported(const std::vector<std::string>& texts) {
    std::string all;
    for (const std::string& violation : take_violations()) all += violation + "\n";
    for (const std::string& text : texts)
      EXPECT_NE(all.find(text), std::string::npos) << "no '" << text << "' in:\n" << all;
  }
};

TEST_F(Mutants, NoneIsNotNoticed) {
  use(Mutated{});
  for (const std::string& violation : take_violations()) ADD_FAILURE() << violation;
}

TEST_F(Mutants, AWrongCountOnOneRank) {
  Mutated mutated;
  mutated.nccl.all_reduce = [](const void* in, void* out, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    int device = 0;
    cuda().get_device(&device);
    return nccl().all_reduce(in, out, count > 1 && device == 1 ? count - 1 : count, type, op, comm,
                             stream);
  };
  use(mutated);
  expect_reported({"mismatch: ncclAllReduce"});
}

TEST_F(Mutants, AMissingGroupEnd) {
  Mutated mutated;
  mutated.nccl.group_end = [] { return ncclSuccess; };
  use(mutated);
  expect_reported({"left open"});
}

TEST_F(Mutants, ACallAfterAbort) {
  Mutated mutated;
  mutated.nccl.comm_abort = [](ncclComm_t comm) {
    const auto result = nccl().comm_abort(comm);
    ncclResult_t state{};
    nccl().comm_get_async_error(comm, &state);
    return result;
  };
  use(mutated);
  expect_reported({"was aborted before"});
}

TEST_F(Mutants, AKernelOnTheWrongStream) {
  Mutated mutated;
  mutated.driver.launch_kernel = [](CUfunction kernel, unsigned int grid_x, unsigned int grid_y,
                                    unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                    unsigned int block_z, unsigned int shared, CUstream,
                                    void** parameters, void** extra) {
    return apis().driver->launch_kernel(kernel, grid_x, grid_y, grid_z, block_x, block_y, block_z,
                                        shared, nullptr, parameters, extra);
  };
  use(mutated);
  expect_reported({"race: the kernel tutti_fold"});
}

/// The wrong sums over an array that is registered at a page of its block. Some versions of NCCL
/// are wrong in windows; a mutant is an NCCL that says that it is a newer one.
class WrongWindows : public Mutants {
 protected:
  static int wrong_ranks(int version, int says, std::size_t page) {
    static std::atomic<int> reported;
    reported = says;
    static Mutated mutated;
    mutated.nccl.get_version = [](int* value) {
      *value = reported;
      return ncclSuccess;
    };
    set_version(version);
    std::atomic<int> wrong = 0;
    on_groups(
        size,
        [&](const Member& at) {
          constexpr std::size_t bytes = 4096;
          Memory& memory = at.group.registrable_memory();
          void* block = memory.allocate(2 * bytes, at.stream());
          const TensorView data{static_cast<std::byte*>(block) + page * bytes,
                                DType::f32,
                                {Member::count},
                                memory.device()};
          {
            const Registration registered = at.group.register_memory(data, {.stream = at.stream()});
            at.fill(data, static_cast<float>(at.rank + 1), slow);
            at.group.all_reduce(data, ReduceOp::sum, {.stream = at.stream()});
            wrong += at.holds(data, 3) ? 0 : 1;
          }
          memory.release(block, 2 * bytes, at.stream());
        },
        mutated.setup());
    return wrong;
  }
};

TEST_F(WrongWindows, OfAVersionWhoseKernelsDoNotWaitForTheirInput) {
  EXPECT_EQ(wrong_ranks(22809, 22809, 0), 0);
  EXPECT_EQ(wrong_ranks(22809, 23007, 0), size);
  EXPECT_EQ(wrong_ranks(23004, 23004, 0), 0);
  EXPECT_EQ(wrong_ranks(23004, 23007, 0), size);
  EXPECT_EQ(wrong_ranks(23007, 23007, 0), 0);
}

TEST_F(WrongWindows, OfAVersionThatTakesThemForTheirBlock) {
  EXPECT_EQ(wrong_ranks(23007, 23007, 1), 0);
  EXPECT_EQ(wrong_ranks(23007, 23102, 1), size);
  EXPECT_EQ(wrong_ranks(23102, 23102, 1), 0);
}

TEST_F(Mutants, ACommunicatorThatIsNotAskedWhetherItIsReady) {
  Mutated mutated;
  mutated.nccl.comm_get_async_error = [](ncclComm_t, ncclResult_t* state) {
    *state = ncclSuccess;
    return ncclSuccess;
  };
  use(mutated);
  expect_reported({"still ncclInProgress"});
}

TEST_F(Mutants, ADeviceThatIsNotSet) {
  Mutated mutated;
  mutated.cuda.set_device = [](int) { return cudaSuccess; };
  use(mutated);
  expect_reported({" of device "});  // The number is that of the rank that comes first.
}

TEST_F(Mutants, EventsThatAreNotDestroyed) {
  Mutated mutated;
  mutated.cuda.event_destroy = [](cudaEvent_t) { return cudaSuccess; };
  use(mutated);
  expect_reported({"events were never destroyed"});
}

TEST_F(Mutants, AReductionThatIsDestroyedBeforeItsUse) {
  Mutated mutated;
  mutated.nccl.red_op_create_pre_mul_sum = [](ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                              ncclScalarResidence_t residence, ncclComm_t comm) {
    const auto result = nccl().red_op_create_pre_mul_sum(op, scalar, type, residence, comm);
    nccl().red_op_destroy(*op, comm);
    return result;
  };
  use(mutated);
  expect_reported({"is not one of communicator"});
}

// Two groups in an order of their own on each rank: allowed on host memory, a deadlock on NCCL.
TEST_F(Mutants, TwoGroupsInAnotherOrderOnOneRank) {
  const auto store = make_memory_store();
  RankBarrier barrier(size);
  on_threads(size, [&](int rank) {
    const GroupSetup setup{.timeout = 1s};
    ProcessGroup one = make_group(rank, size, store, setup, "one");
    ProcessGroup two = make_group(rank, size, store, setup, "two");
    const Member first{one, rank, nullptr, nullptr};
    const Member second{two, rank, nullptr, nullptr};
    cuda().set_device(rank);
    const TensorView a = first.make();
    const TensorView b = second.make();
    first.fill(a, 1);
    first.fill(b, 1);
    one.all_reduce(a);  // Connects them.
    two.all_reduce(b);
    barrier.wait();
    try {
      Work x = rank == 0 ? one.all_reduce_async(a) : two.all_reduce_async(b);
      Work y = rank == 0 ? two.all_reduce_async(b) : one.all_reduce_async(a);
      y.wait();
      x.wait();
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): only the report counts.
    }
    barrier.wait();
    one.abort("the test is over");
    two.abort("the test is over");
    first.free(a);
    second.free(b);
    cuda().stream_synchronize(nullptr);
    cuda().get_last_error();
  });
  expect_reported({"deadlock: ncclAllReduce"});
}

}  // namespace
}  // namespace tutti::test::nccl_double
