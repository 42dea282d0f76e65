// The cost of a call of the backend nccl on the host, without NCCL and CUDA, whose functions do
// nothing here. Counters show how often each function is called per collective. No number here is
// one of NCCL.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>

#include <benchmark/benchmark.h>

#include <tutti/process_group.hpp>

#include "nccl/nccl.hpp"

namespace {

using namespace tutti;
using backend::nccl::Apis;
using backend::nccl::CudaApi;
using backend::nccl::NcclApi;

std::atomic<std::int64_t> nccl_calls = 0;  // Counts calls of all threads.
std::atomic<std::int64_t> cuda_calls = 0;

/// A function of the same type that returns success.
template <typename Function, std::atomic<std::int64_t>& calls>
struct Nothing;
template <typename Result, typename... Args, std::atomic<std::int64_t>& calls>
struct Nothing<Result (*)(Args...), calls> {
  static Result call(Args...) {
    ++calls;
    return Result{};
  }
};

const NcclApi& nccl() {
  static const NcclApi api = [] {
    NcclApi a;
#define FIELD(field, ...) a.field = Nothing<decltype(a.field), nccl_calls>::call;
    TUTTI_NCCL_FUNCTIONS(FIELD)
#undef FIELD
    a.comm_init_rank_config = [](ncclComm_t* comm, int, ncclUniqueId, int, ncclConfig_t*) {
      *comm = reinterpret_cast<ncclComm_t>(&nccl_calls);
      return ncclSuccess;
    };
    return a;
  }();
  return api;
}

const CudaApi& cuda() {
  static const CudaApi api = [] {
    CudaApi a;
#define FIELD(field, ...) a.field = Nothing<decltype(a.field), cuda_calls>::call;
    TUTTI_CUDA_FUNCTIONS(FIELD)
#undef FIELD
    a.get_device_count = [](int* count) {
      *count = 1;
      return cudaSuccess;
    };
    a.stream_create_with_flags = [](cudaStream_t* stream, unsigned int) {
      static int made = 0;
      *stream = reinterpret_cast<cudaStream_t>(&made);  // Not the default stream.
      return cudaSuccess;
    };
    a.malloc_async = [](void** data, std::size_t bytes, cudaStream_t) {
      *data = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
      return cudaSuccess;
    };
    a.free_async = [](void* data, cudaStream_t) {
      std::free(data);
      return cudaSuccess;
    };
    a.get_error_name = [](cudaError_t) { return ""; };
    a.get_error_string = [](cudaError_t) { return ""; };
    a.has_context = [](int) { return true; };
    return a;
  }();
  return api;
}

ProcessGroup make_group() {
  GroupOptions options;
  options.store = make_memory_store();
  options.rank = 0;
  options.size = 1;
  options.name = "bench";
  BackendInit init;
  init.store = make_prefix_store(options.store, "backend/");
  init.name = options.name;
  init.device = {DeviceType::cuda, 0};
  init.timeout = std::chrono::seconds(10);
  init.logger = [](LogLevel, std::string_view) {};
  return ProcessGroup::create(options, backend::nccl::make_nccl(init, {&nccl(), &cuda()}));
}

/// `call(group, array)`, one collective.
void measure(benchmark::State& state,
             const std::function<void(ProcessGroup&, const TensorView&)>& call) {
  ProcessGroup group = make_group();
  Tensor array(group.memory(), {1024}, DType::f32);
  call(group, array);
  nccl_calls = 0;
  cuda_calls = 0;
  for (auto _ : state) call(group, array);
  const auto each = [](std::int64_t calls) {
    return benchmark::Counter(static_cast<double>(calls), benchmark::Counter::kAvgIterations);
  };
  state.counters["nccl"] = each(nccl_calls);
  state.counters["cuda"] = each(cuda_calls);
}

void all_reduce(benchmark::State& state) {
  measure(state, [](ProcessGroup& group, const TensorView& array) { group.all_reduce(array); });
}
BENCHMARK(all_reduce);

void all_reduce_on_a_stream(benchmark::State& state) {
  int stream = 0;
  measure(state, [&](ProcessGroup& group, const TensorView& array) {
    group.all_reduce(array, ReduceOp::sum, {.stream = {&stream}});
  });
}
BENCHMARK(all_reduce_on_a_stream);

void all_reduce_async(benchmark::State& state) {
  measure(state, [](ProcessGroup& group, const TensorView& array) {
    group.all_reduce_async(array).wait();
  });
}
BENCHMARK(all_reduce_async);

}  // namespace
BENCHMARK_MAIN();
