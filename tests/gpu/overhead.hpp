#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/store.hpp>

#include "nccl/nccl.hpp"

// What the backend nccl costs over a loop that calls NCCL itself: the same calls, arrays and
// stream, and a communicator of the same settings.

namespace tutti::gpu {

struct OverheadOptions {
  std::vector<std::string> operations{"all_reduce", "all_gather", "reduce_scatter", "broadcast"};
  std::vector<std::size_t> sizes{};  ///< Bytes: S of `tutti bench --help-sizes`; rounded up.
  int rounds = 21;                   ///< Blocks of each of the two, in turns.
  int most_calls = 200;              ///< Of a block.
};

/// Medians over the blocks of one operation and size; of a call, in microseconds.
struct OverheadRow {
  std::string operation{};
  std::size_t bytes = 0;
  int calls = 0;       ///< Of a block.
  double bare_us = 0;  ///< On the device, between events.
  double ours_us = 0;
  double bare_host_us = 0;  ///< Until the call has returned.
  double ours_host_us = 0;
  std::size_t wrong = 0;  ///< Elements of this rank, of both.
};

/// At most 2 % or 1 us per call on the device, and nothing wrong.
bool passes(const OverheadRow& row) noexcept;
double median(std::vector<double> values);

/// One rank of several, which all call it. `elapsed_us(from, to)` waits for the event `to` and is
/// the time between both.
/// @throws Error.
struct OverheadPlace {
  int rank = 0;
  int size = 1;
  int device = 0;
  std::shared_ptr<Store> store{};
  backend::nccl::Apis apis{};
  std::function<double(cudaEvent_t from, cudaEvent_t to)> elapsed_us{};
};
std::vector<OverheadRow> measure_overhead(const OverheadPlace& place,
                                          const OverheadOptions& options);

/// A Markdown table, with "ok", "SLOW" or "WRONG" behind each row.
std::string to_markdown(const std::vector<OverheadRow>& rows);

}  // namespace tutti::gpu
