#include "bench/measure.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <set>
#include <span>
#include <utility>

#include "bench/calls.hpp"
#include "bench/own_calls.hpp"
#include "common/message.hpp"

namespace tutti::tool {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Overlap, overall_us, compute_us, comm_us)

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t most_warmup_calls = 50;
constexpr std::size_t median_window = 5;
constexpr std::int64_t fewest_samples = 10;
constexpr std::int64_t most_samples = 1'000'000;  // Samples per row: 8 MB on every rank.
/// Duration of a burst in ns. The host waits for a device after each burst: a burst is long enough
/// to make that wait negligible, and short enough for the device's queue.
constexpr double burst_ns = 2e6;
constexpr std::int64_t longest_burst = 200;

/// One rank's result of a row.
struct RankResult {
  double mean_us = 0;
  std::int64_t wrong = 0;
  std::optional<FirstWrong> first{};
  Overlap overlap{};  // The medians of this rank.
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankResult, mean_us, wrong, first, overlap)

/// Makes timing.warmup calls; if that is empty, calls until the last five medians, each over five
/// calls, agree within 5 %, at most 50, and not longer than timing.min_time if the calls are
/// checked. Rank 0 decides. Returns the number of calls.
std::int64_t warm_up(ProcessGroup& group, Calls& calls, const Timing& timing) {
  std::array<std::int64_t, most_warmup_calls> ns{};
  if (timing.warmup) {
    for (std::int64_t left = *timing.warmup; left > 0;) {
      const auto n = std::min<std::int64_t>(left, most_warmup_calls);
      calls.run(std::span(ns).first(static_cast<std::size_t>(n)), false);
      left -= n;
    }
    return *timing.warmup;
  }
  std::vector<double> times;
  std::vector<double> medians;
  const auto start = Clock::now();
  for (std::size_t done = 0; done < ns.size();) {
    calls.run(std::span(ns).subspan(done, 1), false);
    times.push_back(static_cast<double>(ns[done++]));
    if (times.size() >= median_window)
      medians.push_back(median(std::span(times).last(median_window)));
    const bool late = calls.costs_more() && Clock::now() - start > timing.min_time;
    const bool enough = late || settled(medians);
    if (medians.size() >= median_window && agree(group, enough ? 1 : 0) != 0) break;
  }
  return std::ssize(times);
}

/// The number of calls per sample. Rank 0 decides, from the times of three calls.
std::int64_t choose_burst(ProcessGroup& group, Calls& calls) {
  if (!calls.on_device() || calls.one_by_one()) return 1;
  std::array<std::int64_t, 3> ns{};
  calls.run(ns, false);
  const auto one = static_cast<double>(
      std::max<std::int64_t>(std::ranges::min(ns) * calls.calls_per_sample(), 1));
  return agree(group, std::clamp<std::int64_t>(std::llround(burst_ns / one), 1, longest_burst));
}

/// The compute that lasts as long as a call without it, as in osu_iallreduce. Rank 0 decides, from
/// the calls of at most 0.1 s; the first half of them is warm-up.
std::chrono::nanoseconds choose_compute(ProcessGroup& group, Calls& calls, const Timing& timing) {
  const auto time =
      std::min<std::chrono::nanoseconds>(timing.min_time / 4, std::chrono::milliseconds(100));
  std::vector<double> all;
  const auto start = Clock::now();
  do {
    std::array<std::int64_t, 5> ns{};
    calls.run(ns, false);
    all.insert(all.end(), ns.begin(), ns.end());
  } while (agree(group, Clock::now() - start < time ? 1 : 0) != 0);
  const double call_ns = median(std::span(all).subspan(all.size() / 2));
  return std::chrono::nanoseconds(agree(group, calls.calls_per_sample() * std::llround(call_ns)));
}

/// The durations of the counted calls of one row, in ns. The preparation and the check of every
/// call, and the compute beside it, count as time spent.
std::vector<std::int64_t> durations_of(ProcessGroup& group, Calls& calls, const Timing& timing) {
  std::vector<std::int64_t> ns;
  std::int64_t spent_ns = 0;
  const auto call = [&](std::int64_t n) {
    const std::size_t done = ns.size();
    // Writes the memory, because reserved pages would fault in the timed loop.
    ns.resize(done + static_cast<std::size_t>(n));
    const auto fresh = std::span(ns).subspan(done);
    const auto start = Clock::now();
    calls.run(fresh, true);
    spent_ns += calls.costs_more()
                    ? std::chrono::nanoseconds(Clock::now() - start).count()
                    : calls.calls_per_sample() *
                          std::accumulate(fresh.begin(), fresh.end(), std::int64_t{0});
  };
  call(timing.iters.value_or(fewest_samples));
  if (timing.iters) return ns;
  // Each round is at most ten times as long as all earlier rounds together, so that a wrong
  // estimate of a call's duration costs little.
  while (true) {
    const auto done = std::ssize(ns);
    const auto spent = static_cast<double>(spent_ns);
    const double left = static_cast<double>(timing.min_time.count()) - spent;
    std::int64_t next = 0;
    if (left > 0 && done < most_samples) {
      const double mean = std::max(spent / static_cast<double>(done), 1.0);
      next = static_cast<std::int64_t>(
          std::min(std::ceil(left / mean), 10.0 * static_cast<double>(done)));
      next = std::clamp<std::int64_t>(next, 1, most_samples - done);
    }
    next = agree(group, next);
    if (next == 0) return ns;
    call(next);
  }
}

/// Combines the ranks' times of every iteration, in microseconds. The result is valid on rank 0
/// only.
std::vector<double> combine(ProcessGroup& group, std::span<const std::int64_t> own_ns,
                            RankAgg agg) {
  std::vector<std::int64_t> ns(own_ns.begin(), own_ns.end());
  // Integers, because not every backend has the maximum of floats.
  if (agg != RankAgg::rank0)
    ns = reduce(group, own_ns,
                agg == RankAgg::max    ? ReduceOp::max
                : agg == RankAgg::mean ? ReduceOp::sum
                                       : ReduceOp::min);
  const double unit = agg == RankAgg::mean ? 1e-3 / group.size() : 1e-3;
  std::vector<double> us;
  us.reserve(ns.size());
  for (const std::int64_t n : ns) us.push_back(static_cast<double>(n) * unit);
  return us;
}

/// The number of buffer sets that --cold rotates over, at least those of one call; the same on
/// every rank. Sets `capped` if the memory allows fewer than wanted.
std::size_t copies_for(const Block& block, int ranks, std::int64_t bytes, const Timing& timing,
                       bool& capped) {
  capped = false;
  const auto least = static_cast<std::size_t>(timing.aggregate);
  if (timing.cold_bytes == 0 || !block.collective->moves_data()) return least;
  const std::size_t each = std::max<std::size_t>(block.footprint(ranks, bytes), 4096);
  const std::size_t wanted = timing.cold_bytes / each + 1 + least;
  const std::size_t possible = std::max(timing.cold_limit_bytes / each, least);
  capped = possible < wanted;
  return std::min(wanted, possible);
}

/// The medians of one rank, per call.
Overlap overlap_of(const Calls& calls, const std::vector<std::int64_t>& ns) {
  const auto n = static_cast<double>(calls.calls_per_sample());
  std::vector<double> comm_us;
  for (const std::int64_t each : ns) comm_us.push_back(1e-3 * static_cast<double>(each));
  return {median(calls.overall_us()) / n, median(calls.compute_us()) / n, median(comm_us)};
}

/// The means over the ranks.
Overlap overlap_of(const std::vector<RankResult>& results) {
  Overlap mean;
  const auto n = static_cast<double>(results.size());
  for (const RankResult& result : results) {
    mean.overall_us += result.overlap.overall_us / n;
    mean.compute_us += result.overlap.compute_us / n;
    mean.comm_us += result.overlap.comm_us / n;
  }
  return mean;
}

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

/// Sets everything in a row that follows from its times: statistics, bandwidths and flags.
/// @param samples_us  of the iterations, combined over the ranks.
/// @param rank_means_us  mean of each rank.
/// @param factor  bus bandwidth / algorithm bandwidth; 0: no byte crosses a link.
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

/// Combines the results of all ranks. Collective; the row is complete on rank 0.
Row conclude(ProcessGroup& group, Control& control, const Block& block, const Cell& cell,
             const Calls& calls, const std::vector<std::int64_t>& ns, const Timing& timing) {
  RankResult own;
  own.mean_us = 1e-3 * static_cast<double>(std::accumulate(ns.begin(), ns.end(), std::int64_t{0})) /
                static_cast<double>(ns.size());
  own.wrong = calls.wrong().count;
  own.first = calls.wrong().first;
  if (timing.overlap) own.overlap = overlap_of(calls, ns);
  std::vector<double> samples = combine(group, ns, timing.rank_agg);
  std::vector<RankResult> rank_results;
  std::vector<double> means;
  for (const std::string& text : control.collect(to_message(own))) {
    rank_results.push_back(from_message<RankResult>(text));
    means.push_back(rank_results.back().mean_us);
  }

  Row row;
  if (group.rank() != 0) return row;
  const bool moves = block.collective->moves_data();
  row.key = block.key();
  row.bytes = cell.count * static_cast<std::int64_t>(size_of(block.dtype));
  row.count = cell.count;
  row.ranks = group.size();
  if (cell.uneven) row.counts.assign(cell.blocks.counts().begin(), cell.blocks.counts().end());
  row.calls_per_sample = calls.calls_per_sample();
  if (timing.overlap) row.overlap = overlap_of(rank_results);
  if (moves && timing.check != Check::none) {
    row.wrong = 0;
    for (const RankResult& rank_result : rank_results) {
      if (*row.wrong == 0) row.first_wrong = rank_result.first;
      *row.wrong += rank_result.wrong;
    }
  }
  set_times(row, std::move(samples), std::move(means),
            group.size() > 1 ? block.collective->factor.of(cell) : 0, timing);
  return row;
}

}  // namespace

Row measure(Rank& rank, Control& control, Workspace& workspace, const Block& block,
            std::int64_t bytes, const Timing& timing) {
  ProcessGroup& group = rank.group;
  const Cell cell = block.cell(group.size(), group.rank(), bytes);
  rank.position = {std::string(block.collective->name), bytes, -1};
  bool capped = false;
  const std::size_t copies = copies_for(block, group.size(), bytes, timing, capped);
  const std::vector<Buffers> sets = workspace.lay_out(block.collective->extent(cell), block.dtype,
                                                      block.place == PlaceMode::in, copies);
  Calls calls(rank, block, cell, sets, timing);
  if (timing.check != Check::none && block.collective->moves_data()) calls.check_once();
  const std::int64_t warmup_calls = warm_up(group, calls, timing);
  calls.set_burst(choose_burst(group, calls));
  if (timing.overlap) calls.set_compute(choose_compute(group, calls, timing));
  const std::vector<std::int64_t> ns = durations_of(group, calls, timing);
  Row row = conclude(group, control, block, cell, calls, ns, timing);
  row.warmup_calls = warmup_calls;
  if (capped) row.flags.push_back(Flag::capped_mem);
  rank.position = {};
  return row;
}

}  // namespace tutti::tool
