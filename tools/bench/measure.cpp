#include "bench/measure.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <set>
#include <span>

#include "bench/own_calls.hpp"
#include "bench/staging.hpp"
#include "common/message.hpp"

namespace tutti::tool {

void parts(Message& message, FirstWrong& first) {
  message(first.rank, first.array, first.index, first.expected, first.got);
}

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

  void add(const Mismatches& found, int rank, PlaceMode array) {
    if (wrong == 0 && found.first)
      first = FirstWrong{rank, array, found.first->index, found.first->expected, found.first->got};
    wrong += found.count;
  }
};

void parts(Message& message, RankResult& rank_result) {
  message(rank_result.mean_us, rank_result.wrong, rank_result.first);
}

/// An upper bound, with a wide margin, of the time that a rank takes to fill and check its arrays.
std::chrono::nanoseconds preparation(const Cell& cell, std::size_t copies) {
  const double values = static_cast<double>(cell.count) * cell.ranks * static_cast<double>(copies);
  return Deadline::saturate(std::chrono::duration<double, std::nano>(100 * values));
}

/// The calls of one row on one rank.
class Calls {
 public:
  Calls(ProcessGroup& group, const Block& block, const Cell& cell, std::span<const Buffers> sets,
        const Timing& timing, Position& position)
      : group_(group),
        collective_(*block.collective),
        cell_(cell),
        how_{cell_,
             block.op == ReduceOp::Kind::premul_sum
                 ? ReduceOp::premul(Pattern::scale_of(cell.rank))
                 : ReduceOp{block.op.value_or(ReduceOp::Kind::sum)},
             {.integer_avg = true}},
        sets_(sets),
        timing_(timing),
        position_(position),
        pattern_(block.dtype, block.op, cell.ranks, timing.seed),
        pieces_(collective_.result(cell)),
        width_(size_of(block.dtype)),
        patience_(Deadline::saturate(std::chrono::duration<double, std::nano>(timing.timeout) +
                                     preparation(cell, sets_.size()))) {
    for (const Buffers& set : sets_) prepare(set);
  }
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  /// Makes one call on fresh data, outside of the timing.
  void check_once() {
    meet();
    call(sets_.front());
    inspect(sets_.front());
  }

  bool on_device() const { return !on_host(group_.memory()); }
  /// The number of calls, or of messages between pairs of ranks, whose mean is one sample.
  std::int64_t per_sample() const {
    return burst_ * (collective_.paired() ? collective_.messages(cell_) : 1);
  }
  /// Several calls are one sample only on a device.
  void set_burst(std::int64_t calls) noexcept { burst_ = calls; }

  /// Makes a burst of calls for each element of `ns` and writes the mean duration of a call, or of
  /// a message between a pair of ranks, to it.
  /// `counted`: position_ then counts these iterations.
  void run(std::span<std::int64_t> ns, bool counted) {
    const bool each_checked = timing_.check == Check::all && collective_.moves_data();
    const bool latency = timing_.mode == Mode::latency;
    position_.iteration = -1;
    meet();
    auto before = Clock::now();
    for (std::int64_t& sample : ns) {
      const Buffers& set = sets_[next_set_];
      if (counted) position_.iteration = counted_++;
      if (each_checked) {
        prepare(set);
        meet();
      }
      if (latency) group_.barrier();
      if (latency || each_checked) before = Clock::now();
      for (std::int64_t i = 0; i < burst_; ++i) {
        call(sets_[next_set_]);
        next_set_ = next_set_ + 1 == sets_.size() ? 0 : next_set_ + 1;
      }
      if (on_device()) wait_for_device();
      const auto after = Clock::now();
      sample = std::chrono::nanoseconds(after - before).count() / per_sample();
      before = after;
      if (each_checked) inspect(set);
    }
    if (each_checked) meet();
  }

  const RankResult& rank_result() const noexcept { return rank_result_; }

 private:
  /// A barrier whose timeout allows other ranks to fill or check for longer than this one.
  void meet() { group_.barrier({.deadline = Deadline::after(patience_)}); }

  void prepare(const Buffers& set) const {
    set.in.paint_guards();
    set.out.paint_guards();
    set.out.poison();
    const ConstTensorView& in = set.arrays.in;
    if (in.data == nullptr) return;
    // This object owns the bytes; the view is const for the call.
    write(group_.memory(), const_cast<void*>(in.data), in.bytes(),
          [&](std::byte* piece, std::size_t at, std::size_t bytes) {
            pattern_.fill(piece, elements(bytes), cell_.rank, elements(at));
          });
  }

  void call(const Buffers& set) { collective_.call(group_, set.arrays, how_); }

  void wait_for_device() {
    if (mark_.data() == nullptr) mark_ = Tensor(group_.memory(), Shape{1}, DType::u8);
    wait_for_default_stream(group_.memory(), mark_.data());
  }

  std::int64_t elements(std::size_t bytes) const noexcept {
    return static_cast<std::int64_t>(bytes / width_);
  }

  /// compare(bytes, first, count) returns the errors in `count` elements of `array` from `first`
  /// on.
  template <typename Compare>
  void examine(const void* array, std::int64_t count, PlaceMode name, const Compare& compare) {
    Mismatches found;
    read(group_.memory(), array, static_cast<std::size_t>(count) * width_,
         [&](const std::byte* piece, std::size_t at, std::size_t bytes) {
           Mismatches here = compare(piece, elements(at), elements(bytes));
           if (here.first) here.first->index += elements(at);
           if (found.count == 0) found.first = here.first;
           found.count += here.count;
         });
    rank_result_.add(found, cell_.rank, name);
  }

  void inspect(const Buffers& set) {
    const auto* out = static_cast<const std::byte*>(set.arrays.out.data);
    for (const Piece& piece : pieces_)
      examine(out + static_cast<std::size_t>(piece.at) * width_, piece.count, PlaceMode::out,
              [&](const std::byte* bytes, std::int64_t first, std::int64_t count) {
                Pattern::Source source = piece.source;
                source.first += first;
                return pattern_.check(bytes, count, source);
              });
    rank_result_.add(set.out.damage(width_), cell_.rank, PlaceMode::out);
    rank_result_.add(set.in.damage(width_), cell_.rank, PlaceMode::in);
    const ConstTensorView& in = set.arrays.in;
    const bool has_own_input = in.data != nullptr && (!set.shared || pieces_.empty());
    if (has_own_input)
      examine(in.data, in.shape.numel(), PlaceMode::in,
              [&](const std::byte* bytes, std::int64_t first, std::int64_t count) {
                return pattern_.check_filled(bytes, count, cell_.rank, first);
              });
  }

  ProcessGroup& group_;
  const Collective& collective_;
  Cell cell_;
  How how_;
  std::span<const Buffers> sets_;
  const Timing& timing_;
  Position& position_;
  Pattern pattern_;
  std::vector<Piece> pieces_;
  std::size_t width_;
  std::chrono::nanoseconds patience_;
  std::size_t next_set_ = 0;
  std::int64_t counted_ = 0;
  std::int64_t burst_ = 1;
  Tensor mark_{};
  RankResult rank_result_{};
};

/// Makes timing.warmup calls; if that is empty, calls until the last five medians, each over five
/// calls, agree within 5 %, at most 50. Rank 0 decides. Returns the number of calls.
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
  for (std::size_t done = 0; done < ns.size();) {
    calls.run(std::span(ns).subspan(done, 1), false);
    times.push_back(static_cast<double>(ns[done++]));
    if (times.size() >= median_window)
      medians.push_back(median(std::span(times).last(median_window)));
    if (medians.size() >= median_window && agree(group, settled(medians) ? 1 : 0) != 0) break;
  }
  return std::ssize(times);
}

/// The number of calls per sample. Rank 0 decides, from the times of three calls.
std::int64_t choose_burst(ProcessGroup& group, Calls& calls, const Timing& timing) {
  if (!calls.on_device() || timing.mode == Mode::latency || timing.check == Check::all) return 1;
  std::array<std::int64_t, 3> ns{};
  calls.run(ns, false);
  const auto one =
      static_cast<double>(std::max<std::int64_t>(std::ranges::min(ns) * calls.per_sample(), 1));
  return agree(group, std::clamp<std::int64_t>(std::llround(burst_ns / one), 1, longest_burst));
}

/// The durations of the counted calls of one row, in ns.
std::vector<std::int64_t> durations_of(ProcessGroup& group, Calls& calls, const Timing& timing) {
  std::vector<std::int64_t> ns;
  std::int64_t spent_ns = 0;
  const auto call = [&](std::int64_t n) {
    const std::size_t done = ns.size();
    // Writes the memory, because reserved pages would fault in the timed loop.
    ns.resize(done + static_cast<std::size_t>(n));
    const auto fresh = std::span(ns).subspan(done);
    calls.run(fresh, true);
    spent_ns += calls.per_sample() * std::accumulate(fresh.begin(), fresh.end(), std::int64_t{0});
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

/// The number of buffer sets that --cold rotates over; the same on every rank. Sets `capped` if the
/// memory allows fewer than wanted.
std::size_t copies_for(const Block& block, int ranks, std::int64_t bytes, const Timing& timing,
                       bool& capped) {
  capped = false;
  if (timing.cold_bytes == 0 || !block.collective->moves_data()) return 1;
  const std::size_t each = std::max<std::size_t>(block.footprint(ranks, bytes), 4096);
  const std::size_t wanted = timing.cold_bytes / each + 2;
  const std::size_t possible = std::max<std::size_t>(timing.cold_limit_bytes / each, 1);
  capped = possible < wanted;
  return std::min(wanted, possible);
}

/// Combines the results of all ranks. Collective; the row is complete on rank 0.
Row conclude(ProcessGroup& group, Control& control, const Block& block, const Cell& cell,
             const Calls& calls, const std::vector<std::int64_t>& ns, const Timing& timing) {
  RankResult own = calls.rank_result();
  own.mean_us = 1e-3 * static_cast<double>(std::accumulate(ns.begin(), ns.end(), std::int64_t{0})) /
                static_cast<double>(ns.size());
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
  row.time_us = summarize(samples);
  std::vector<double> sorted = samples;
  std::sort(sorted.begin(), sorted.end());
  std::set<double> wanted(timing.percentiles.begin(), timing.percentiles.end());
  wanted.insert({50, 90, 99});
  for (const double p : wanted) row.percentiles_us[p] = percentile(sorted, p);
  row.slowest_rank = static_cast<int>(std::max_element(means.begin(), means.end()) - means.begin());
  row.calls_per_sample = calls.per_sample();
  if (moves) {
    // Of a pair, the rank that begins knows when the last message has arrived.
    const bool paired = block.collective->paired();
    const auto timed = std::span(means).first(means.size() / (paired ? 2 : 1));
    const double mean_us =
        std::accumulate(timed.begin(), timed.end(), 0.0) / static_cast<double>(timed.size());
    row.algbw = mean_us > 0 ? static_cast<double>(row.bytes) / mean_us * 1e-3 : 0;
    const double factor = group.size() > 1 ? block.collective->factor.of(cell) : 0;
    if (factor > 0) row.busbw = *row.algbw * factor;
    if (paired && mean_us > 0)
      row.messages_per_s =
          1e6 / mean_us * block.collective->ways * static_cast<double>(timed.size());
  }
  if (moves && timing.check != Check::none) {
    row.wrong = 0;
    for (const RankResult& rank_result : rank_results) {
      if (*row.wrong == 0) row.first_wrong = rank_result.first;
      *row.wrong += rank_result.wrong;
    }
  }
  row.rank_mean_us = std::move(means);
  set_flags(row, samples, sorted);
  if (timing.samples == Samples::all) row.samples_us = std::move(samples);
  return row;
}

}  // namespace

Row measure(ProcessGroup& group, Control& control, Workspace& workspace, const Block& block,
            std::int64_t bytes, const Timing& timing, Position& position) {
  const Cell cell = block.cell(group.size(), group.rank(), bytes);
  position = {std::string(block.collective->name), bytes, -1};
  bool capped = false;
  const std::size_t copies = copies_for(block, group.size(), bytes, timing, capped);
  const std::vector<Buffers> sets = workspace.lay_out(block.collective->extent(cell), block.dtype,
                                                      block.place == PlaceMode::in, copies);
  Calls calls(group, block, cell, sets, timing, position);
  if (timing.check != Check::none && block.collective->moves_data()) calls.check_once();
  const std::int64_t warmup_calls = warm_up(group, calls, timing);
  calls.set_burst(choose_burst(group, calls, timing));
  const std::vector<std::int64_t> ns = durations_of(group, calls, timing);
  Row row = conclude(group, control, block, cell, calls, ns, timing);
  row.warmup_calls = warmup_calls;
  if (capped) row.flags.push_back(Flag::capped_mem);
  position = {};
  return row;
}

}  // namespace tutti::tool
