#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include <tutti/metrics.hpp>

// The rows of all ranks, counted by score. Counts and weights are integers, whose sums depend
// neither on the order of the rows nor on their split over ranks.

namespace tutti::internal::metrics {

__extension__ typedef __int128 Int128;

/// Counts over the rows with this score or a lower one. With weights: the sums of the weights, in
/// multiples of 2^-80 of the power of two above the largest weight, to which each weight is cut.
struct Step {
  std::uint64_t key;  ///< ordered_key() of the score.
  Int128 positive, negative;
  Int128 all() const noexcept { return positive + negative; }
};

class ScoreCounts {
 public:
  /// Collective. `check` checks this rank's arguments; it may fill in `rows`, which is read then.
  /// @throws Error invalid_argument if it throws, or if `rows` has an invalid element; mismatch
  /// then on the other ranks, and if `words` (the options in words) or the calls of the ranks
  /// differ.
  ScoreCounts(ProcessGroup& group, std::string_view caller, std::string_view words,
              const std::function<void()>& check, const tutti::metrics::ScoredRows& rows,
              const CallOptions& options);

  /// The first step has the sums of all scores below this rank's range. The steps of the range
  /// follow, ascending. Every rank has all steps if they are few.
  std::span<const Step> steps() const noexcept { return steps_; }
  /// Sums over the rows of all ranks.
  const Step& total() const noexcept { return total_; }

  /// Collective, unless every rank has all steps. Replaces the first `sums` numbers by their sums
  /// over the ranks, the others by their largest.
  void combine(std::vector<Int128>& numbers, std::size_t sums) const;

 private:
  std::vector<Int128> gather(std::span<const Int128> mine) const;

  ProcessGroup& group_;
  std::string_view caller_;
  CallOptions options_;
  bool has_all_ = true;
  std::vector<Step> steps_{};
  Step total_{};
};

}  // namespace tutti::internal::metrics
