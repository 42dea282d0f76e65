#include <algorithm>
#include <cstdio>

#include <fmt/format.h>

#include "prices.hpp"
#include "run_ranks.hpp"

// usage: prices. Prints two tables. Status 1 when a fold is wrong; 77 without a GPU.

int main(int argc, char** argv) {
  using namespace tutti;
  if (argc > 1) {
    fmt::print(stderr, "usage: {}\n", argv[0]);
    return 64;
  }
  return gpu::run_ranks(0, [](const gpu::Rank& here) -> gpu::Outcome {
    fmt::print("{}\n", gpu::to_markdown(measure_prices(here, gpu::load_cuda_functions())));
    std::fflush(stdout);  // The time may end before the folds do.
    const auto rates = measure_folds(here);
    fmt::print("{}", gpu::to_markdown(rates));
    if (std::ranges::all_of(rates, [](const auto& rate) { return rate.wrong == 0; })) return {};
    return {1, "a fold on the device is wrong"};
  });
}
