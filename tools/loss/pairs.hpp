#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "loss/problem.hpp"

// The losses that are means over pairs of rows, as one writes them down: every anchor with every
// row, one thread, in double. What an engine is compared with.

namespace tutti::tool {

/// Of one class. Loss and gradient are complete when `done` is `anchors`.
struct PairLoop {
  double loss = 0;
  std::vector<double> gradient{};  ///< d loss / d score of every row.
  std::int64_t anchors = 0;
  std::int64_t done = 0;
  std::chrono::nanoseconds time{};  ///< Of those that are done.
};

/// Smooth-AP. After a fifth of `limit` it goes on only if all anchors would be done within it.
PairLoop smooth_ap_by_pairs(std::span<const double> scores, std::span<const std::uint8_t> positive,
                            double temperature, std::chrono::nanoseconds limit);

/// The pairwise pAUC, with thresholds and temperature that somebody else found.
PairLoop p_auc_by_pairs(std::span<const double> scores, std::span<const std::uint8_t> positive,
                        const losses::PAucDiagnostics& band, std::chrono::nanoseconds limit);

struct PairTime {
  std::chrono::nanoseconds time{};  ///< Forward and gradient of all classes.
  bool estimated = false;           ///< From a part of the anchors: all would take over a second.
};

/// The loop over the pool of call number `call`: its rows, and those of the calls before that are
/// in the queue. Empty for a loss that is not of pairs. `bands` are of that call.
std::optional<PairTime> time_pairs(LossKind kind, const LossProblem& problem, std::int64_t call,
                                   double temperature,
                                   std::span<const losses::PAucDiagnostics> bands);

}  // namespace tutti::tool
