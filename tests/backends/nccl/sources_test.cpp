#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "backends/nccl/groups.hpp"
#include "cuda/device.hpp"
#include "cuda/memory.hpp"
#include "nccl/failure.hpp"
#include "nccl/settings.hpp"
#include "values/library.hpp"

// Rules that follow from the sources of NCCL and CUDA (docs/nccl.md), over the double.

namespace tutti::test::nccl_double {
namespace {

class FromSources : public Double {};

// NCCL 2.28.9 leaks memory for each group of calls on one rank.
TEST_F(FromSources, OneRankMakesNoGroupOfNccl) {
  on_groups(1, [](const Member& at) {
    const TensorView in = at.make();
    const TensorView out = at.make();
    at.fill(in, 3);
    at.fill(out, 0);
    const int groups = calls("ncclGroupStart");
    const CallOptions options{.stream = at.stream()};
    at.group.all_reduce(in, out, ReduceOp::sum, options);
    EXPECT_TRUE(at.holds(out, 3));
    at.fill(out, 0);
    at.group.all_reduce(in, out, ReduceOp::min, options);  // By kernels of the library.
    EXPECT_TRUE(at.holds(out, 3));
    at.fill(out, 0);
    at.group.reduce_scatter(in, out, {}, ReduceOp::avg, options);
    EXPECT_TRUE(at.holds(out, 3));
    at.fill(out, 0);
    at.group.all_gather(in, out, {}, options);
    EXPECT_TRUE(at.holds(out, 3));
    at.group.broadcast(out, 0, options);
    at.group.barrier(options);
    EXPECT_EQ(calls("ncclGroupStart"), groups);
    at.group.all_reduce(in, out, ReduceOp::premul(2), options);
    EXPECT_TRUE(at.holds(out, 6));
    at.free(in);
    at.free(out);
  });
}

// Their memory is of cudaMallocAsync, which gives no access to a peer.
TEST_F(FromSources, RanksThatAreThreadsNeedNccl224) {
  set_version(22304);
  const auto store = make_memory_store();
  on_threads(2, [&](int rank) {
    cuda().set_device(rank);
    expect_error(Errc::unsupported, {"threads", "2.23.4", "2.24", "NCCL_P2P_DIRECT_DISABLE=1"},
                 [&] { (void)make_group(rank, 2, store, {}); });
  });
  ASSERT_EQ(setenv("NCCL_P2P_DIRECT_DISABLE", "1", 1), 0);
  on_groups(2, [](const Member& at) { at.group.barrier(); });
  unsetenv("NCCL_P2P_DIRECT_DISABLE");
  set_version(22403);
  on_groups(2, [](const Member& at) { at.group.barrier(); });
}

// NCCL permits no two threads to queue calls on a device at a time.
TEST_F(FromSources, MessagesAndCollectivesOfTwoThreadsAreQueuedOneAfterAnother) {
  set_messages_side_by_side(true);
  constexpr int rounds = 60;
  on_groups(2, [](const Member& at) {
    const TensorView data = at.make();
    const TensorView message = at.make();
    at.fill(data, 1);
    at.fill(message, 1);
    cuda().stream_synchronize(at.compute);
    const auto pass_on = [&] {
      const CallOptions options{.stream = {at.other}};
      return at.rank == 0 ? at.group.send_async(message, 1, 0, options)
                          : at.group.recv_async(message, 0, 0, options);
    };
    pass_on().wait();  // The first message connects the ranks.
    std::thread collectives([&] {
      cuda().set_device(at.rank);
      for (int i = 0; i < rounds; ++i)
        at.group.all_reduce_async(data, ReduceOp::max, {.stream = at.stream()}).wait();
    });
    for (int i = 0; i < rounds; ++i) pass_on().wait();
    collectives.join();
    at.free(data);
    at.free(message);
  });
}

TEST_F(FromSources, TheStoreIsAskedLessOftenInALargeWorld) {
  using backend::nccl::between_looks;
  using backend::nccl::first_look;
  EXPECT_EQ(first_look(2), 20ms);
  EXPECT_EQ(first_look(64), 160ms);
  EXPECT_EQ(first_look(1024), 1s);
  EXPECT_EQ(between_looks(0s, 8), 20ms);
  EXPECT_EQ(between_looks(0s, 64), 160ms);
  EXPECT_EQ(between_looks(2s, 64), 500ms);
  EXPECT_EQ(between_looks(1h, 1024), 1s);
  using backend::nccl::collecting_time;  // The bounds in docs/nccl.md.
  EXPECT_EQ(collecting_time(0s, 8), 80ms);
  EXPECT_EQ(collecting_time(1h, 8), 1060ms);
  EXPECT_EQ(collecting_time(1h, 400), 4s);
  EXPECT_EQ(collecting_time(1h, 100'000), 4s);
}

TEST_F(FromSources, AnEndThatTakesLongIsNoAbort) {
  const int aborted = calls("ncclCommAbort");
  on_groups(2,
            [](const Member& at) {
              at.group.barrier();
              set_faults(at.rank, {.finalize_hangs = true});
              std::thread([rank = at.rank] {
                std::this_thread::sleep_for(1300ms);
                set_faults(rank, {});
              }).detach();
            },
            {.timeout = 60s});
  EXPECT_EQ(calls("ncclCommAbort"), aborted);
}

TEST_F(FromSources, MemoryThatNcclDoesNotGiveSaysWhereToLook) {
  on_groups(1, [](const Member& at) {
    set_faults(0, {.fails = "ncclMemAlloc", .with = ncclUnhandledCudaError});
    expect_error(Errc::resource_exhausted, {"ncclMemAlloc of 64 bytes", "NCCL_DEBUG", "imex"},
                 [&] { (void)at.group.registrable_memory().allocate(64, {}); });
  });
}

TEST_F(FromSources, TheRuntimeIsOneThatTheDriverServes) {
  using Names = std::vector<std::string>;
  const auto names = [](int driver) {
    const auto all = backend::cuda::runtime_names(driver);
    return Names(all.begin(), all.end());
  };
  EXPECT_EQ(names(12080), Names{"libcudart.so.12"});
  EXPECT_EQ(names(13000), (Names{"libcudart.so.13", "libcudart.so.12"}));
  EXPECT_EQ(names(0), names(13000));
}

TEST_F(FromSources, ALibraryThatIsLoadedAlreadyComesFirst) {
  ASSERT_EQ(dlopen("libanl.so.1", RTLD_NOW | RTLD_NOLOAD), nullptr) << "the test needs another";
  const internal::Library chosen({"libanl.so.1", "libc.so.6"}, "install it");
  expect_error(Errc::unsupported, {"libc.so.6 has no tutti_has_no_such_function"},
               [&] { (void)chosen.symbol("tutti_has_no_such_function"); });
}

std::map<cudaMemPoolAttr, std::uint64_t> pool_attributes;

// CUDA's default pool gives memory back at each synchronization.
TEST_F(FromSources, ScratchMemoryIsOfAPoolThatKeepsIt) {
  static auto pools = cuda();
  pools.mem_pool_set_attribute = [](cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
    pool_attributes[attribute] = attribute == cudaMemPoolAttrReleaseThreshold
                                     ? *static_cast<std::uint64_t*>(value)
                                     : static_cast<std::uint64_t>(*static_cast<int*>(value));
    return cuda().mem_pool_set_attribute(pool, attribute, value);
  };
  auto tables = apis();
  tables.cuda = &pools;
  on_groups(1,
            [](const Member& at) {
              const TensorView data = at.make();
              at.fill(data, 2);
              const int before = calls("cudaMallocFromPoolAsync");
              at.group.all_reduce(data, ReduceOp::min, {.stream = at.stream()});
              EXPECT_EQ(calls("cudaMallocFromPoolAsync"), before + 1);
              EXPECT_TRUE(at.holds(data, 2));
              at.free(data);
            },
            {.apis = tables});
  EXPECT_EQ(pool_attributes[cudaMemPoolAttrReleaseThreshold], UINT64_MAX);
  ASSERT_TRUE(pool_attributes.contains(cudaMemPoolReuseAllowInternalDependencies));
  EXPECT_EQ(pool_attributes[cudaMemPoolReuseAllowInternalDependencies], 0U);
}

TEST_F(FromSources, AScratchAllocationThatFailsNamesTheFunctionOfThePool) {
  static auto full = cuda();
  full.malloc_from_pool_async = [](void**, std::size_t, cudaMemPool_t, cudaStream_t) {
    return cudaErrorMemoryAllocation;
  };
  const auto memory = backend::cuda::scratch_memory(full, 0);
  expect_error(Errc::resource_exhausted, {"cudaMallocFromPoolAsync", "256 bytes on cuda:0"},
               [&] { (void)memory->allocate(256, {}); });
}

TEST_F(FromSources, ThePoolReturnsItsMemoryWhenTheLastGroupOfTheDeviceHasEnded) {
  const auto store = make_memory_store();
  on_threads(2, [&](int rank) {
    cuda().set_device(rank);
    cudaStream_t stream = nullptr;
    cuda().stream_create_with_flags(&stream, cudaStreamNonBlocking);
    std::optional<ProcessGroup> first = make_group(rank, 2, store, {}, "first");
    std::optional<ProcessGroup> second = make_group(rank, 2, store, {}, "second");
    const int trims = calls("cudaMemPoolTrimTo");
    for (ProcessGroup* group : {&*first, &*second}) {
      const Member at{*group, rank, stream, stream};
      const TensorView data = at.make();
      at.fill(data, 2);
      group->all_reduce(data, ReduceOp::min, {.stream = at.stream()});
      EXPECT_TRUE(at.holds(data, 2));
      at.free(data);
    }
    second->barrier();
    first.reset();
    second->barrier();
    EXPECT_EQ(calls("cudaMemPoolTrimTo"), trims);
    second->barrier();
    second.reset();
    EXPECT_GT(calls("cudaMemPoolTrimTo"), trims);
    EXPECT_EQ(kept_by_trim(rank), 0);
    cuda().stream_destroy(stream);
  });
}

ncclConfig_t last_config{};
int last_priority = 0;

TEST_F(FromSources, SettingsReachNcclAndTheStream) {
  static auto seen = nccl();
  seen.comm_init_rank_config = [](ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                  ncclConfig_t* config) {
    last_config = *config;
    EXPECT_EQ(std::string(config->commName), "n");
    EXPECT_EQ(std::string(config->netName), "Socket");
    return nccl().comm_init_rank_config(comm, size, id, rank, config);
  };
  static auto streams = cuda();
  streams.stream_create_with_priority = [](cudaStream_t* stream, unsigned int flags, int priority) {
    last_priority = priority;
    return cuda().stream_create_with_priority(stream, flags, priority);
  };
  auto tables = apis();
  tables.nccl = &seen;
  tables.cuda = &streams;
  on_groups(1, [](const Member& at) { at.group.barrier(); },
            {.apis = tables,
             .args = "min_ctas=2,max_ctas=8,cga_cluster_size=1,traffic_class=5,cta_policy=2,"
                     "net_name=Socket,priority=-3"});
  EXPECT_EQ(last_config.blocking, 0);
  EXPECT_EQ(last_config.minCTAs, 2);
  EXPECT_EQ(last_config.maxCTAs, 8);
  EXPECT_EQ(last_config.cgaClusterSize, 1);
  EXPECT_EQ(last_config.trafficClass, 5);
  EXPECT_EQ(last_config.CTAPolicy, 2);
  EXPECT_EQ(last_priority, -3);
}

TEST_F(FromSources, UnknownSettingsAreNamed) {
  using backend::nccl::Settings;
  expect_error(Errc::invalid_argument, {"'most_ctas'", "max_ctas", "priority"},
               [] { (void)Settings::of("max_ctas=8,most_ctas=3"); });
  expect_error(Errc::invalid_argument, {"'max_ctas'", "'many'", "integer"},
               [] { (void)Settings::of("max_ctas=many"); });
}

TEST_F(FromSources, OtherSettingsOfARankAreRefusedOnEachWithBothSides) {
  const auto store = make_memory_store();
  const int made = calls("ncclCommInitRankConfig");
  on_threads(3, [&](int rank) {
    const std::string args = rank == 2 ? "priority=-1,cta_policy=2,net_name=Socket" : "max_ctas=8";
    expect_error(Errc::mismatch,
                 {"'max_ctas=8' on rank 0", "'cta_policy=2,net_name=Socket' on rank 2"},
                 [&] { (void)make_backend(rank, 3, store, {.args = args}); });
  });
  EXPECT_EQ(calls("ncclCommInitRankConfig"), made);
}

TEST_F(FromSources, OrderAndPriorityOfSettingsMayDiffer) {
  on_members(
      2, [](int rank) { return rank; },
      [](int rank, const std::shared_ptr<Store>& store) {
        return make_group(
            rank, 2, store,
            {.args = rank == 0 ? "min_ctas=2,max_ctas=8" : "max_ctas=8,priority=-1,min_ctas=2"});
      },
      [](const Member& at) { at.group.barrier(); });
}

}  // namespace
}  // namespace tutti::test::nccl_double
