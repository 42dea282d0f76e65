#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/names.hpp"

namespace tutti::tool {

enum class Mode : std::uint8_t { throughput, latency };
template <>
inline constexpr Names<2> names_of<Mode>{"throughput", "latency"};

enum class RankAgg : std::uint8_t { max, mean, min, rank0 };
template <>
inline constexpr Names<4> names_of<RankAgg>{"max", "mean", "min", "rank0"};

enum class Check : std::uint8_t { first, all, none };
template <>
inline constexpr Names<3> names_of<Check>{"first", "all", "none"};

enum class Samples : std::uint8_t { none, all };
template <>
inline constexpr Names<2> names_of<Samples>{"none", "all"};

struct Timing {
  Mode mode = Mode::throughput;
  std::chrono::nanoseconds min_time = std::chrono::milliseconds(500);
  std::optional<std::int64_t> iters{};   ///< Empty: at least 10 and at least min_time.
  std::optional<std::int64_t> warmup{};  ///< Empty: until times are settled, at most 50.
  RankAgg rank_agg = RankAgg::max;
  Check check = Check::first;
  std::uint64_t seed = 0;
  std::chrono::nanoseconds timeout = std::chrono::seconds(60);  ///< Timeout of the group.
  std::vector<double> percentiles{50, 90, 99};
  Samples samples = Samples::none;   ///< Samples to keep in the row.
  std::size_t cold_bytes = 0;        ///< Rotates over buffers of at least this many bytes; 0: off.
  std::size_t cold_limit_bytes = 0;  ///< Limit of the memory for that.
  std::int64_t aggregate = 1;        ///< Calls in one Coalesce.
  bool overlap = false;              ///< Times asynchronous calls with compute beside them, too.
};

}  // namespace tutti::tool
