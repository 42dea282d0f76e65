#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "overhead.hpp"
#include "reducer.hpp"
#include "run_ranks.hpp"

// usage: overhead [--full | --reducer] [--copies N]. Rank 0 prints the table: of the library beside
// bare NCCL, or of a step of GradientReducer. Status 1 when an element is wrong, however slow the
// calls are; 77 without a GPU. --copies: the ranks are threads that share a device, not processes.

namespace {

using namespace tutti;

gpu::Outcome run(bool full, const gpu::Rank& here) {
  std::size_t free = 0;
  if (here.rank == 0) {  // The ranks need the same sizes.
    std::size_t total = 0;
    check(*here.apis.cuda, gpu::load_cuda_functions().mem_get_info(&free, &total),
          "cudaMemGetInfo");
    here.store->set("free", std::to_string(free));
  } else {
    free = std::stoull(here.store->get_text("free", Deadline::after(std::chrono::minutes(1))));
  }
  const gpu::OverheadOptions options{.sizes = gpu::overhead_sizes(free, here.size, full)};
  if (here.rank == 0) fmt::print("{}", gpu::markdown_head());
  const auto rows = gpu::measure_overhead(here, options, [&](const gpu::OverheadRow& row) {
    if (here.rank != 0) return;
    fmt::print("{}", gpu::to_markdown(row));
    std::fflush(stdout);
  });
  const auto wrong = std::ranges::count_if(rows, [](const auto& row) { return row.wrong != 0; });
  if (wrong == 0) return {};
  return {1, fmt::format("{} rows of rank {} have wrong elements", wrong, here.rank)};
}

gpu::Outcome run_reducer(const gpu::Rank& here) {
  const auto counts = gpu::gradient_counts();
  const auto time = measure_reducer(here, counts, 20);
  if (here.rank == 0)
    fmt::print("| GradientReducer, {} gradients | {:.0f} | {:.0f} |\n", counts.size(),
               time.device_us, time.host_us);
  if (time.wrong == 0) return {};
  return {1, fmt::format("{} elements of rank {} are wrong", time.wrong, here.rank)};
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string_view> arguments(argv + 1, argv + argc);
  const int copies = gpu::take_copies(arguments);
  const bool full = arguments == std::vector<std::string_view>{"--full"};
  const bool reducer = arguments == std::vector<std::string_view>{"--reducer"};
  if (copies < 0 || (!arguments.empty() && !full && !reducer)) {
    fmt::print(stderr, "usage: {} [--full | --reducer] [--copies N]\n", argv[0]);
    return 64;
  }
  return gpu::run_ranks(
      copies, [&](const gpu::Rank& here) { return reducer ? run_reducer(here) : run(full, here); });
}
