#include "backends/nccl/groups.hpp"

// The messages that the front makes of a gather for a decorated backend. They take effect in the
// order of the collectives.

namespace tutti::test::nccl_double {
namespace {

constexpr std::int64_t count = 100;

class Lowered : public Double {
 protected:
  static constexpr int size = 2;

  /// An all_reduce of slow inputs, whose result rank 1 sends to rank 0: what rank 0 then has. The
  /// host waits for neither.
  static std::vector<float> reduce_and_gather(const backend::nccl::Apis& apis) {
    const auto store = make_memory_store();
    std::vector<float> got(count);
    on_threads(size, [&](int rank) {
      cuda().set_device(rank);
      cudaStream_t compute = nullptr;
      cuda().stream_create_with_flags(&compute, cudaStreamNonBlocking);
      {
        const auto backend = make_backend(rank, size, store, {.apis = apis});
        Memory& memory = backend->memory();
        constexpr std::size_t bytes = count * sizeof(float);
        const auto make = [&] {
          void* data = memory.allocate(bytes, {compute});
          fill(compute, static_cast<float*>(data), count, 1, 20ms);
          return TensorView{data, DType::f32, {count}, memory.device()};
        };
        const TensorView data = make();
        const TensorView all = make();
        const Op sum{.kind = Operation::all_reduce, .in = data, .out = data};
        const Op move = rank == 0 ? Op{.kind = Operation::recv, .out = all, .peer = 1, .tag = -1}
                                  : Op{.kind = Operation::send, .in = data, .peer = 0, .tag = -1};
        Work first = backend->launch({&sum, 1}, {.seq = 0, .stream = {compute}, .timeout = 5s});
        Work second = backend->launch(
            {&move, 1}, {.seq = 1, .stream = {compute}, .timeout = 5s, .in_order = true});
        second.block_stream({compute});
        if (rank == 0) {
          memory.copy(got.data(), all.data, bytes, {compute});
          cuda().stream_synchronize(compute);
        }
        first.wait();
        second.wait();
        memory.release(data.data, bytes, {compute});
        memory.release(all.data, bytes, {compute});
        cuda().stream_synchronize(compute);
      }
      cuda().stream_destroy(compute);
    });
    return got;
  }
};

TEST_F(Lowered, MessagesSeeTheResultOfThePendingCallBeforeThem) {
  const int ids = calls("ncclGetUniqueId");
  EXPECT_EQ(reduce_and_gather(apis()), std::vector<float>(count, 2));
  EXPECT_EQ(calls("ncclGetUniqueId"), ids + 1);  // They have no communicator of their own.
}

TEST_F(Lowered, MessagesOnAnotherStreamAreNoticed) {
  static backend::nccl::NcclApi mutated;
  mutated = *apis().nccl;
  mutated.send = [](const void* data, std::size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
                    cudaStream_t) { return nccl().send(data, n, type, peer, comm, nullptr); };
  (void)reduce_and_gather({&mutated, apis().cuda});
  expect_violation({"race: "});
}

}  // namespace
}  // namespace tutti::test::nccl_double
