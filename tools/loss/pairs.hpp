#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "loss/problem.hpp"

// Direct loops for the losses that are means over pairs of rows: every anchor with every row, one
// thread, in double. The reference for the library's implementations.

namespace tutti::tool {

/// Results for one class. Loss and gradient are complete when `done` equals `anchors`.
struct PairLoop {
  double loss = 0;
  std::vector<double> gradient{};  ///< d loss / d score of every row.
  std::int64_t anchors = 0;
  std::int64_t done = 0;
  std::chrono::nanoseconds time{};  ///< Sum over the anchors that are done.
};

/// Smooth-AP. After a fifth of `limit`, continues only if all anchors would end within `limit`.
PairLoop smooth_ap_by_pairs(std::span<const double> scores, std::span<const std::uint8_t> positive,
                            double temperature, std::chrono::nanoseconds limit);

/// The pairwise pAUC, with given thresholds and temperature.
PairLoop p_auc_by_pairs(std::span<const double> scores, std::span<const std::uint8_t> positive,
                        const losses::PAucDiagnostics& band, std::chrono::nanoseconds limit);

struct PairTime {
  std::chrono::nanoseconds time{};  ///< Forward and gradient of all classes.
  bool estimated =
      false;  ///< Extrapolated from a part of the anchors, because all would take over a second.
};

/// Times the loop over the pool of call number `call`: the call's rows, and the queue's rows of
/// earlier calls. Empty for a loss without pairs. `bands`: the diagnostics of that call.
std::optional<PairTime> time_pairs(LossKind kind, const LossProblem& problem, std::int64_t call,
                                   double temperature,
                                   std::span<const losses::PAucDiagnostics> bands);

}  // namespace tutti::tool
