#include <algorithm>
#include <cstdio>
#include <exception>
#include <string_view>

#include <fmt/format.h>

#include "cuda/api.hpp"
#include "cuda_functions.hpp"
#include "overhead.hpp"
#include "rank.hpp"

// usage: overhead [--full]. Rank 0 prints the table. Status 1 when an element is wrong, however
// slow the calls are; 77 without a GPU.

namespace {

using namespace tutti;

int run(bool full) {
  for (const BackendEntry& entry : backends()) {
    if (entry.name != "nccl_gpu") continue;
    if (const std::string why = entry.unavailable(); !why.empty()) {
      fmt::print("no GPU: {}\n", why);
      return 77;
    }
  }
  const backend::nccl::Apis apis{&backend::nccl::nccl_api(), &backend::cuda::cuda_api()};
  int devices = 0;
  backend::cuda::check(*apis.cuda, apis.cuda->get_device_count(&devices), "cudaGetDeviceCount");
  const gpu::Rank here = gpu::find_rank(devices);
  const gpu::CudaFunctions cuda = gpu::load_cuda_functions();
  gpu::OverheadOptions options;
  const std::size_t most = std::size_t{1} << 30;
  for (std::size_t bytes = 8; bytes <= most; bytes *= full ? 2 : 8) options.sizes.push_back(bytes);
  if (options.sizes.back() != most) options.sizes.push_back(most);
  const auto elapsed_us = [&](cudaEvent_t from, cudaEvent_t to) {
    float ms = 0;
    backend::cuda::check(*apis.cuda, cuda.event_synchronize(to), "cudaEventSynchronize");
    backend::cuda::check(*apis.cuda, cuda.event_elapsed_time(&ms, from, to),
                         "cudaEventElapsedTime");
    return static_cast<double>(ms) * 1e3;
  };
  if (here.rank == 0) fmt::print("{}", gpu::markdown_head());
  const auto rows = gpu::measure_overhead({.rank = here.rank,
                                           .size = here.size,
                                           .device = here.device,
                                           .store = here.store,
                                           .apis = apis,
                                           .elapsed_us = elapsed_us},
                                          options, [&](const gpu::OverheadRow& row) {
                                            if (here.rank != 0) return;
                                            fmt::print("{}", gpu::to_markdown(row));
                                            std::fflush(stdout);
                                          });
  return std::ranges::all_of(rows, [](const gpu::OverheadRow& row) { return row.wrong == 0; }) ? 0
                                                                                               : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const bool full = argc == 2 && std::string_view(argv[1]) == "--full";
  if (argc > 1 && !full) {
    fmt::print(stderr, "usage: {} [--full]\n", argv[0]);
    return 64;
  }
  try {
    return run(full);
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 70;
  }
}
