#include <charconv>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "run_ranks.hpp"
#include "soak.hpp"

// usage: soak SECONDS [--copies N]. The last line is "ok, " and what was done in that time, or says
// what is wrong: status 1. Status 77 without a GPU. --copies: the ranks are threads that share a
// device, not processes.

int main(int argc, char** argv) {
  using namespace tutti;
  std::vector<std::string_view> arguments(argv + 1, argv + argc);
  const int copies = gpu::take_copies(arguments);
  int seconds = 0;
  if (arguments.size() == 1)
    std::from_chars(arguments[0].data(), arguments[0].data() + arguments[0].size(), seconds);
  if (copies < 0 || seconds <= 0) {
    fmt::print(stderr, "usage: {} SECONDS [--copies N]\n", argv[0]);
    return 64;
  }
  gpu::SoakOptions options;
  options.limit = std::chrono::seconds(seconds);
  return gpu::run_ranks(copies, [&](const gpu::Rank& here) -> gpu::Outcome {
    const gpu::CudaFunctions functions = gpu::load_cuda_functions();
    const auto memory = [&] {
      std::size_t free = 0;
      std::size_t total = 0;
      check(*here.apis.cuda, functions.mem_get_info(&free, &total), "cudaMemGetInfo");
      return gpu::MemoryInUse{gpu::resident_bytes(), static_cast<std::int64_t>(total - free)};
    };
    const gpu::SoakResult result = soak(here, options, memory);
    const std::string fault = fault_of(result, options);
    if (fault.empty()) return {0, "ok, " + to_text(result, options)};
    return {1, fmt::format("rank {}: {}; {}", here.rank, fault, to_text(result, options))};
  });
}
