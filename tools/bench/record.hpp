#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <tutti/dtype.hpp>
#include <tutti/reduce_op.hpp>

#include "common/names.hpp"
#include "common/statistics.hpp"
#include "links/links.hpp"
#include "report/record.hpp"

// The record of a run of `tutti bench`: plain values.

namespace tutti::tool {

enum class PlaceMode : std::uint8_t { out, in };
template <>
inline constexpr Names<2> names_of<PlaceMode>{"out", "in"};

enum class Flag : std::uint8_t { few_samples, noisy, slow_first, capped_mem };
template <>
inline constexpr Names<4> names_of<Flag>{"few_samples", "noisy", "slow_first", "capped_mem"};

/// The settings that all rows of one sweep share.
struct Key {
  std::string coll{};
  std::optional<DType> dtype{};        ///< Empty for barrier.
  std::optional<ReduceOp::Kind> op{};  ///< Empty without a reduction.
  std::optional<PlaceMode> place{};    ///< Empty for barrier.
  std::optional<int> root{};           ///< Empty without a root.
  std::string counts{};                ///< Division of S; empty if S is not divided.

  friend bool operator==(const Key&, const Key&) = default;
};

/// The times of --overlap: medians of the iterations, their mean over the ranks.
struct Overlap {
  double overall_us = 0;  ///< A call with the compute between its start and its end.
  double compute_us = 0;  ///< The compute alone.
  double comm_us = 0;     ///< The call alone.

  /// The share of the communication that the compute hides, as osu_iallreduce has it.
  double percent() const noexcept;
};

struct Row {
  Key key{};
  std::int64_t bytes = 0;
  std::int64_t count = 0;
  int ranks = 1;
  std::vector<std::int64_t> counts{};  ///< Elements of each rank's block; empty if all are equal.
  Summary time_us{};
  /// The percentiles 50, 90, 99 and the requested ones.
  std::map<double, double> percentiles_us{{50, 0}, {90, 0}, {99, 0}};
  std::vector<double> rank_mean_us{};
  int slowest_rank = 0;
  std::optional<double> algbw{};           ///< GB/s; empty for barrier.
  std::optional<double> busbw{};           ///< Empty for barrier, and if no byte crosses a link.
  std::optional<double> messages_per_s{};  ///< Of all pairs of ranks; empty for collectives.
  std::optional<std::int64_t> wrong{};     ///< Elements on all ranks; empty if not checked.
  std::optional<FirstWrong> first_wrong{};
  std::vector<double> block_p50_us{};  ///< block_medians() of the samples.
  std::vector<double> samples_us{};    ///< Kept with --samples all.
  std::vector<Flag> flags{};
  std::int64_t warmup_calls = 0;
  std::int64_t calls_per_sample = 1;  ///< Above one on a device, in a Coalesce and for messages.
  std::optional<Overlap> overlap{};   ///< With --overlap.

  bool has(Flag flag) const noexcept;
};

struct KeyedFit {
  Key key{};
  Fit fit{};
};

struct BenchRecord : RunRecord {
  std::vector<Row> rows{};
  std::vector<KeyedFit> fits{};
  std::vector<Link> links{};  ///< With --links.
  std::vector<Slow> slow{};   ///< Ranks and links that are slower than the others.
};

void describe(Fields& fields, const Row& row);
void describe(Fields& fields, const KeyedFit& fit);

/// "all_reduce  f32 sum  out-of-place  root 0", "all_gather  f32  out-of-place  counts linear".
std::string title(const Key& key);

/// The mean of the bus bandwidths of all rows that have one, as nccl-tests prints it.
std::optional<double> average_busbw(std::span<const Row> rows);

}  // namespace tutti::tool
