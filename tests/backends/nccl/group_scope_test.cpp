#include <atomic>
#include <new>

#include <tutti/backend/forwarding_backend.hpp>
#include <tutti/coalesce.hpp>

#include "backends/nccl/groups.hpp"
#include "cuda/memory.hpp"
#include "support/memories.hpp"

// Every call of NCCL between ncclGroupStart and ncclGroupEnd fails once, and so does every
// allocation of a call. The group of NCCL has to be closed, the error has to name the call of NCCL,
// and the same threads have to be able to make another group.

namespace tutti::test::nccl_double {
namespace {

constexpr int size = 2;

/// The planned faults of this thread.
struct Plan {
  int calls_left = -1;        ///< Of NCCL, until one fails.
  int allocations_left = -1;  ///< Of the group's memory.
  bool thrown_by_standard = false;
  const char* failed = nullptr;  ///< Which one has.
  int depth = 0;                 ///< Of open groups.
};
thread_local Plan plan;

bool fails_now(const char* name) {
  if (plan.calls_left < 0 || plan.calls_left-- > 0) return false;
  plan.failed = name;
  return true;
}

/// A function of the table that may fail. `always`: it is called nevertheless.
template <auto member, bool always, typename... Arguments>
ncclResult_t maybe(const char* name, Arguments... arguments) {
  const bool fails = fails_now(name);
  const auto result = fails && !always ? ncclSystemError : (nccl().*member)(arguments...);
  return fails ? ncclSystemError : result;
}

backend::nccl::NcclApi failing_table() {
  using Api = backend::nccl::NcclApi;
  Api table = nccl();
  table.group_start = [] {
    ++plan.depth;
    return nccl().group_start();
  };
  table.group_end = [] {
    --plan.depth;
    return maybe<&Api::group_end, true>("ncclGroupEnd");
  };
#define TUTTI_MAYBE(field, name) \
  table.field = [](auto... a) { return maybe<&Api::field, false>(name, a...); };
  TUTTI_MAYBE(all_reduce, "ncclAllReduce")
  TUTTI_MAYBE(reduce, "ncclReduce")
  TUTTI_MAYBE(broadcast, "ncclBroadcast")
  TUTTI_MAYBE(all_gather, "ncclAllGather")
  TUTTI_MAYBE(reduce_scatter, "ncclReduceScatter")
  TUTTI_MAYBE(send, "ncclSend")
  TUTTI_MAYBE(recv, "ncclRecv")
  TUTTI_MAYBE(red_op_create_pre_mul_sum, "ncclRedOpCreatePreMulSum")
#undef TUTTI_MAYBE
  return table;
}

/// Fails an allocation of the group's memory by the plan.
void allocate_by_plan(std::size_t) {
  if (plan.allocations_left < 0 || plan.allocations_left-- != 0) return;
  plan.failed = "memory";
  if (plan.thrown_by_standard) throw std::bad_alloc();
  throw Error(Errc::resource_exhausted, "no memory is left");
}

/// A backend without operations for rows: the front makes them of messages.
class Plain final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  bool supports(Operation operation, DType dtype, ReduceOp::Kind reduce) const noexcept override {
    return operation != Operation::gather && ForwardingBackend::supports(operation, dtype, reduce);
  }
};

struct Arrays {
  TensorView in;
  TensorView out;
  CallOptions options;
  TensorView rows(const TensorView& of, std::int64_t n) const {
    return {of.data, DType::f32, {n}, of.device};
  }
};
using Use = std::function<void(ProcessGroup& group, int rank, const Arrays& at)>;

struct Case {
  const char* name;
  Use use;
  bool plain = false;
};

constexpr std::int64_t room = 60'000;  // Enough for rows that do not travel padded.

const std::vector<Case>& cases() {
  static const std::vector<Case> all{
      {"all_reduce",
       [](auto& g, int, const auto& at) { g.all_reduce(at.in, ReduceOp::sum, at.options); }},
      {"premul",
       [](auto& g, int, const auto& at) { g.all_reduce(at.in, ReduceOp::premul(2), at.options); }},
      {"reduce",
       [](auto& g, int, const auto& at) { g.reduce(at.in, at.out, 1, ReduceOp::sum, at.options); }},
      {"broadcast", [](auto& g, int, const auto& at) { g.broadcast(at.in, 1, at.options); }},
      {"all_gather",
       [](auto& g, int, const auto& at) {
         g.all_gather(at.rows(at.in, 4), at.rows(at.out, 8), {}, at.options);
       }},
      {"all_gather padded",
       [](auto& g, int rank, const auto& at) {
         g.all_gather(at.rows(at.in, rank + 1), at.rows(at.out, 3), {1, 2}, at.options);
       }},
      {"all_gather of broadcasts",
       [](auto& g, int rank, const auto& at) {
         g.all_gather(at.rows(at.in, rank == 0 ? 1 : room - 1), at.out, {1, room - 1}, at.options);
       }},
      {"reduce_scatter",
       [](auto& g, int, const auto& at) {
         g.reduce_scatter(at.rows(at.in, 4), at.rows(at.out, 2), {}, ReduceOp::sum, at.options);
       }},
      {"reduce_scatter of reductions",
       [](auto& g, int rank, const auto& at) {
         g.reduce_scatter(at.rows(at.in, 5), at.rows(at.out, rank == 0 ? 1 : 4), {1, 4},
                          ReduceOp::sum, at.options);
       }},
      {"all_to_all",
       [](auto& g, int, const auto& at) {
         g.all_to_all(at.rows(at.in, 4), at.rows(at.out, 4), {}, {}, at.options);
       }},
      {"gather",
       [](auto& g, int, const auto& at) {
         g.gather(at.rows(at.in, 4), at.rows(at.out, 8), 0, {}, at.options);
       }},
      {"scatter",
       [](auto& g, int, const auto& at) {
         g.scatter(at.rows(at.in, 8), at.rows(at.out, 4), 0, {}, at.options);
       }},
      {"gather of messages",
       [](auto& g, int, const auto& at) {
         g.gather(at.rows(at.in, 4), at.rows(at.out, 8), 0, {}, at.options);
       },
       true},
      {"coalesced",
       [](auto& g, int rank, const auto& at) {
         Coalesce together(g);
         Work one = g.all_reduce_async(at.rows(at.in, 4), ReduceOp::sum, at.options);
         const TensorView tail{
             static_cast<float*>(at.in.data) + 4, DType::f32, {rank + 1}, at.in.device};
         Work two = g.all_gather_async(tail, at.rows(at.out, 3), {1, 2}, at.options);
         Work sent = together.launch();
         sent.wait();
       }},
  };
  return all;
}

class Groups : public Double {
 protected:
  /// Makes a group whose memory and table follow the plan; rank 0 has `mine` in its call. Returns
  /// whether something failed, which is then checked.
  static bool fails(const Case& tested, const Plan& mine, int round,
                    const std::shared_ptr<Store>& store, int rank, RankBarrier& barrier) {
    static const backend::nccl::NcclApi table = failing_table();
    FailingMemory memory(allocate_by_plan, backend::cuda::cuda_memory(cuda(), rank));
    cudaStream_t compute = nullptr;
    cuda().stream_create_with_flags(&compute, cudaStreamNonBlocking);
    bool failed = false;
    {
      const auto name = std::to_string(round);
      auto backend =
          backend::nccl::make_nccl({.store = make_prefix_store(store, name + "-backend/"),
                                    .rank = rank,
                                    .size = size,
                                    .name = name,
                                    .args = {},
                                    .device = {DeviceType::cuda, rank},
                                    .memory = &memory,
                                    .timeout = 10s,
                                    .logger = [](LogLevel, std::string_view) {}},
                                   {&table, apis().cuda});
      if (tested.plain) backend = std::make_unique<Plain>(std::move(backend));
      GroupOptions options;
      options.store = store;
      options.rank = rank;
      options.size = size;
      options.timeout = 10s;
      options.name = name;
      options.logger = [](LogLevel, std::string_view) {};
      ProcessGroup group = ProcessGroup::create(options, std::move(backend));
      const auto make = [&] {
        void* data = memory.allocate(room * sizeof(float), {compute});
        fill(compute, static_cast<float*>(data), room, 1);
        return TensorView{data, DType::f32, {room}, memory.device()};
      };
      const Arrays at{make(), make(), {.stream = {compute}}};
      if (rank == 0) plan = mine;
      std::string output;
      try {
        tested.use(group, rank, at);
        if (rank != 0) group.barrier();
      } catch (const Error& error) {
        output = error.what();
      }
      EXPECT_EQ(plan.depth, 0) << tested.name << " leaves a group open";
      if (rank == 0) {
        const Plan end = std::exchange(plan, {});
        failed = end.failed != nullptr;
        if (failed)
          EXPECT_NE(output.find(end.failed), std::string::npos)
              << tested.name << ": no '" << end.failed << "' in: " << output;
        else
          group.barrier();
      }
      memory.release(at.in.data, 0, {compute});
      memory.release(at.out.data, 0, {compute});
      barrier.wait();
    }
    cuda().stream_synchronize(compute);
    cuda().stream_destroy(compute);
    cuda().get_last_error();
    return failed;
  }

  /// Lets the first, second, ... fail until none does; `first` makes the plan.
  static int fail_each(const Case& tested, const std::function<Plan(int)>& first) {
    int failures = 0;
    for (bool again = true; again; ++failures) {
      const auto store = make_memory_store();
      RankBarrier barrier(size);
      std::atomic<bool> failed = false;
      on_threads(size, [&](int rank) {
        cuda().set_device(rank);
        if (fails(tested, first(failures), 0, store, rank, barrier)) failed = true;
        // Another group on the same thread.
        barrier.wait();
        EXPECT_FALSE(fails(cases()[0], {}, 1, store, rank, barrier)) << tested.name;
      });
      again = failed;
    }
    return failures - 1;
  }
};

TEST_F(Groups, AreClosedWhateverCallOfNcclFailsInThem) {
  for (const Case& tested : cases()) {
    const int failures = fail_each(tested, [](int n) { return Plan{.calls_left = n}; });
    EXPECT_GE(failures, 2) << tested.name;  // A call and the end of the group.
  }
}

TEST_F(Groups, AreClosedWhenThereIsNoMemory) {
  for (const bool standard : {false, true})
    for (const Case& tested : cases()) {
      const std::string name = tested.name;
      if (name != "all_gather padded" && name != "coalesced") continue;
      const int failures = fail_each(tested, [&](int n) {
        return Plan{.allocations_left = n, .thrown_by_standard = standard};
      });
      EXPECT_EQ(failures, 1) << name;
    }
}

}  // namespace
}  // namespace tutti::test::nccl_double
