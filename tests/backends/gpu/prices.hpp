#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cuda_functions.hpp"
#include "rank.hpp"

// The prices of single calls of CUDA, NCCL and the system, and the bandwidth of the library's own
// kernel: the parts of the price of a call.

namespace tutti::gpu {

struct PriceOptions {
  int rounds = 11;  ///< The median counts.
  int calls = 1000;
  std::size_t fold_bytes = std::size_t{256} << 20;  ///< That a fold reads.
};

struct Price {
  std::string call{};
  double ns = 0;  ///< Until the call has returned.
};
/// @throws Error.
std::vector<Price> measure_prices(const Rank& here, const CudaFunctions& functions,
                                  const PriceOptions& options = {});

struct Rate {
  std::string what{};
  double gb_per_s = 0;  ///< Bytes that are read and written, in 10^9.
  std::size_t wrong = 0;
};
/// Folds of 4 and 8 slots beside a copy on the device. Without the library's kernels the copy
/// alone. @throws Error.
std::vector<Rate> measure_folds(const Rank& here, const PriceOptions& options = {});

/// Tables in Markdown.
std::string to_markdown(const std::vector<Price>& prices);
std::string to_markdown(const std::vector<Rate>& rates);

}  // namespace tutti::gpu
