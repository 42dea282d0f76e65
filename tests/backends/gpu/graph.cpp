#include <exception>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <tutti/process_group.hpp>

#include "cuda/api.hpp"
#include "cuda/device.hpp"
#include "cuda_functions.hpp"
#include "nccl/nccl.hpp"
#include "rank.hpp"

// An all_reduce captured into a CUDA graph and replayed with other numbers. The last line is "ok",
// or says what is wrong: status 1. Status 3 where the backend refuses captured calls, 77 without a
// GPU.

namespace {

using namespace tutti;
using backend::cuda::check;

constexpr std::int64_t count = 1000;
constexpr int replays = 3;

std::string unavailable() {
  for (const BackendEntry& entry : backends())
    if (entry.name == "nccl_gpu") return entry.unavailable();
  return "not in this build";
}

int replay(ProcessGroup& group, const gpu::CudaFunctions& functions, int device) {
  const backend::cuda::CudaApi& cuda = backend::cuda::cuda_api();
  const backend::cuda::CudaStream stream(std::make_shared<backend::cuda::Gpu>(cuda, device));
  Memory& memory = group.memory();
  Tensor in(memory, {count}, DType::f32, stream.handle());
  Tensor out(memory, {count}, DType::f32, stream.handle());
  // Connections are made outside of the graph.
  group.all_reduce(in, out, ReduceOp::sum, {.stream = stream.handle()});

  check(cuda, functions.stream_begin_capture(stream.get(), cudaStreamCaptureModeThreadLocal),
        "cudaStreamBeginCapture");
  cudaGraph_t graph = nullptr;
  try {
    group.all_reduce(in, out, ReduceOp::sum, {.stream = stream.handle()});
  } catch (const Error& error) {
    (void)functions.stream_end_capture(stream.get(), &graph);
    (void)cuda.get_last_error();
    if (error.code() != Errc::unsupported) throw;
    fmt::print("not built: {}\n", error.message());
    return 3;
  }
  check(cuda, functions.stream_end_capture(stream.get(), &graph), "cudaStreamEndCapture");
  cudaGraphExec_t made = nullptr;
  check(cuda, functions.graph_instantiate(&made, graph, 0), "cudaGraphInstantiateWithFlags");

  std::int64_t wrong = 0;
  for (int turn = 0; turn < replays; ++turn) {
    std::vector<float> values(count, static_cast<float>(group.rank() + 10 * turn));
    memory.copy(in.data(), values.data(), in.bytes(), stream.handle());
    check(cuda, functions.graph_launch(made, stream.get()), "cudaGraphLaunch");
    memory.copy(values.data(), out.data(), out.bytes(), stream.handle());
    float want = 0;
    for (int rank = 0; rank < group.size(); ++rank) want += static_cast<float>(rank + 10 * turn);
    for (const float value : values)
      if (!(value == want)) ++wrong;
  }
  check(cuda, functions.graph_exec_destroy(made), "cudaGraphExecDestroy");
  check(cuda, functions.graph_destroy(graph), "cudaGraphDestroy");
  group.barrier();
  if (wrong != 0) fmt::print("{} wrong elements in {} replays\n", wrong, replays);
  if (wrong == 0) fmt::print("ok\n");
  return wrong == 0 ? 0 : 1;
}

int run() {
  if (const std::string why = unavailable(); !why.empty()) {
    fmt::print("no GPU: {}\n", why);
    return 77;
  }
  int devices = 0;
  check(backend::cuda::cuda_api(), backend::cuda::cuda_api().get_device_count(&devices),
        "cudaGetDeviceCount");
  const gpu::Rank here = gpu::find_rank(devices);
  const gpu::CudaFunctions functions = gpu::load_cuda_functions();
  const backend::cuda::DeviceScope scope(backend::cuda::cuda_api(), here.device);
  auto group = ProcessGroup::create({.backend = "nccl_gpu",
                                     .store = here.store,
                                     .rank = here.rank,
                                     .size = here.size,
                                     .device = {DeviceType::cuda, here.device},
                                     .timeout = std::chrono::minutes(1)});
  return replay(group, functions, here.device);
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const std::exception& error) {
    fmt::print("error: {}\n", error.what());
    return 1;
  }
}
