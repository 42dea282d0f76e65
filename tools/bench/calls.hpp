#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "bench/data.hpp"
#include "bench/plan.hpp"
#include "bench/timing.hpp"
#include "bench/workspace.hpp"
#include "common/compute_loop.hpp"
#include "run/ranks.hpp"

namespace tutti::tool {

/// The calls of one row on one rank, and their clock. With Timing::aggregate a call is that many
/// calls in one Coalesce, each with buffers of its own.
class Calls {
 public:
  /// `sets` has at least Timing::aggregate sets. The arguments outlive it.
  Calls(Rank& rank, const Block& block, const Cell& cell, std::span<const Buffers> sets,
        const Timing& timing);
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  /// Makes one call on fresh data, outside of the timing.
  void check_once();

  bool on_device() const;
  /// The number of calls whose mean is one sample. Above one on a device, and with an aggregate. Of
  /// calls between pairs of ranks, the number of messages.
  std::int64_t calls_per_sample() const {
    return burst_ * timing_.aggregate * (collective_.paired() ? collective_.messages(cell_) : 1);
  }
  void set_burst(std::int64_t calls) noexcept { burst_ = calls; }
  /// True if samples are a small share of the time of run(): the budget of a row is then the time
  /// of run().
  bool costs_more() const noexcept { return each_checked_ || timing_.overlap; }
  /// Each call is timed alone, and what comes before and after it is not timed.
  bool one_by_one() const noexcept { return latency_ || each_checked_; }
  /// Times each later call with this much compute beside it, too.
  void set_compute(std::chrono::nanoseconds duration) { compute_.emplace(duration); }

  /// Makes a burst of calls for each element of `ns` and writes their mean duration to it.
  /// `counted`: the position then counts these iterations.
  void run(std::span<std::int64_t> ns, bool counted);

  const Wrong& wrong() const noexcept { return data_.wrong(); }
  // Of the counted iterations with set_compute(), in microseconds.
  std::span<const double> compute_us() const noexcept { return compute_us_; }
  std::span<const double> overall_us() const noexcept { return overall_us_; }

 private:
  using Clock = std::chrono::steady_clock;

  void meet();
  /// Calls `use` with each set of the next call.
  template <typename Use>
  void each_next_set(const Use& use);
  void prepare();
  void inspect();
  Work start();
  void call();
  void wait_for_device();
  void overlap(bool counted);

  ProcessGroup& group_;
  Position& position_;
  const Collective& collective_;
  const Timing& timing_;
  const Cell& cell_;
  std::optional<ProcessGroup> made_{};  // By a call that makes a group.
  How how_;
  std::span<const Buffers> sets_;
  RowData data_;
  std::chrono::nanoseconds patience_;
  bool each_checked_;
  bool latency_;  // A barrier before each call.
  std::size_t next_set_ = 0;
  std::int64_t counted_ = 0;
  std::int64_t burst_ = 1;
  std::optional<ComputeLoop> compute_{};
  std::vector<double> compute_us_{};
  std::vector<double> overall_us_{};
  Tensor mark_{};
  std::vector<Work> queued_{};  // Aggregated calls on a device, until it has finished.
};

}  // namespace tutti::tool
