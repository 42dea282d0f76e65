#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "loss/problem.hpp"

namespace tutti::tool {

/// One of the losses, with the options of a problem; gradients are not scaled for a reducer. Keeps
/// the loss's queue between calls. A copy shares the loss.
class LossCall {
 public:
  /// @throws Error invalid_argument for options that the loss refuses.
  LossCall(LossKind kind, const LossProblem& problem) { make(kind, problem); }

  /// `rows` are from make_rows() for the same kind; a null group is this process alone.
  losses::LossResult operator()(ProcessGroup* group, const LossRows& rows) {
    return call_(group, rows);
  }

  /// Null for losses that are not ranking losses.
  const std::shared_ptr<losses::RankingLoss>& ranking() const noexcept { return ranking_; }
  /// Diagnostics of the last call of p_auc_at_budget; empty for other losses.
  std::vector<losses::PAucDiagnostics> diagnostics() const;

 private:
  void make(LossKind kind, const LossProblem& problem);
  template <typename Loss>
  void set(Loss made);

  std::function<losses::LossResult(ProcessGroup*, const LossRows&)> call_{};
  std::shared_ptr<losses::RankingLoss> ranking_{};
};

}  // namespace tutti::tool
