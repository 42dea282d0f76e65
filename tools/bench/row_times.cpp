#include "bench/row_times.hpp"

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include "bench/collectives.hpp"

namespace tutti::tool {
namespace {

void set_flags(Row& row, const std::vector<double>& samples, const std::vector<double>& sorted) {
  // Below 100 samples p99 is the maximum.
  if (samples.size() < 100) row.flags.push_back(Flag::few_samples);
  const Outliers outliers = find_outliers(samples, sorted);
  // One outlier in a hundred is the smallest share that moves p99. Among many thousands of samples
  // the scheduler always delays a few.
  if (static_cast<double>(outliers.count) > 0.01 * static_cast<double>(samples.size()))
    row.flags.push_back(Flag::noisy);
  if (outliers.first) row.flags.push_back(Flag::slow_first);
}

}  // namespace

void set_times(Row& row, std::vector<double> samples_us, std::vector<double> rank_means_us,
               double factor, const Timing& timing) {
  row.time_us = summarize(samples_us);
  row.block_p50_us = block_medians(samples_us);
  std::vector<double> sorted = samples_us;
  std::ranges::sort(sorted);
  std::set<double> wanted(timing.percentiles.begin(), timing.percentiles.end());
  wanted.insert({50, 90, 99});
  for (const double p : wanted) row.percentiles_us[p] = percentile(sorted, p);
  row.slowest_rank =
      static_cast<int>(std::ranges::max_element(rank_means_us) - rank_means_us.begin());
  if (row.key.dtype) {
    // Of a pair, the rank that begins knows when the last message has arrived.
    const Collective& collective = *find_collective(row.key.coll);
    const auto timed = std::span<const double>(rank_means_us)
                           .first(rank_means_us.size() / (collective.paired() ? 2 : 1));
    const double mean_us = mean(timed);
    row.algbw = mean_us > 0 ? static_cast<double>(row.bytes) / mean_us * 1e-3 : 0;
    if (factor > 0) row.busbw = *row.algbw * factor;
    if (collective.paired() && mean_us > 0)
      row.messages_per_s = 1e6 / mean_us * collective.ways * static_cast<double>(timed.size());
  }
  row.rank_mean_us = std::move(rank_means_us);
  set_flags(row, samples_us, sorted);
  if (timing.samples == Samples::all) row.samples_us = std::move(samples_us);
}

}  // namespace tutti::tool
