#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "rank.hpp"

// The cost of the backend nccl compared with a loop that calls NCCL itself: the same calls, arrays
// and stream. There are two such loops: over a communicator with the same settings, and over a
// blocking one. NCCL starts a thread for each group of calls on the first kind only.

namespace tutti::gpu {

struct OverheadOptions {
  std::vector<std::string> operations{"all_reduce", "all_gather", "reduce_scatter", "broadcast"};
  std::vector<std::size_t> sizes{};  ///< Bytes: S of `tutti bench --help-sizes`; rounded up.
  int rounds = 21;                   ///< Blocks of each of the three, in turns.
  int most_calls = 200;              ///< Of a block.
};

/// 8 B to 1 GiB, each 8 times the one before; twice with `full`. The arrays of all ranks take at
/// most half of the device's free bytes.
std::vector<std::size_t> overhead_sizes(std::size_t free, int ranks, bool full);

/// Medians over the blocks of one operation, size and loop; of a call, in microseconds.
struct CallTime {
  double device_us = 0;  ///< Between events.
  double host_us = 0;    ///< Until the call has returned.
};

struct OverheadRow {
  std::string operation{};
  std::size_t bytes = 0;
  int calls = 0;  ///< Of a block.
  CallTime ours{};
  CallTime bare{};        ///< A non-blocking communicator, like the library's.
  CallTime blocking{};    ///< A blocking communicator.
  std::size_t wrong = 0;  ///< Elements of this rank, of all three.
};

/// At most 2 % or 1 us per call on the device.
bool within_limits(double ours_us, double bare_us) noexcept;
/// The same compared with both loops, and no wrong element.
bool passes(const OverheadRow& row) noexcept;

/// Called by all ranks. `done` is called after each row, because the time on the machine may end
/// before the last one.
std::vector<OverheadRow> measure_overhead(
    const Rank& self, const OverheadOptions& options,
    const std::function<void(const OverheadRow& row)>& done = {});

/// The first lines of a Markdown table, and one row of it. Behind each row is "ok", what it is
/// slower than, or how much is wrong.
std::string markdown_head();
std::string to_markdown(const OverheadRow& row);

}  // namespace tutti::gpu
