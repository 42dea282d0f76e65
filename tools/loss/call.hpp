#pragma once

#include <optional>
#include <variant>

#include <tutti/losses/cross_entropy.hpp>
#include <tutti/losses/focal.hpp>
#include <tutti/losses/p_auc_at_budget.hpp>
#include <tutti/losses/recall_at_quantile.hpp>
#include <tutti/losses/smooth_ap.hpp>

#include "loss/problem.hpp"

namespace tutti::tool {

/// One of the losses, with the options of a problem; gradients are not scaled for a reducer.
/// Remembers its queue. Move-only.
class LossCall {
 public:
  /// @throws Error invalid_argument for options that the loss refuses.
  LossCall(LossKind kind, const LossProblem& problem);

  /// `rows` are of make_rows() for the same kind; a null group is this process alone. Only
  /// p_auc_at_budget has diagnostics.
  losses::PAucResult operator()(ProcessGroup* group, const LossRows& rows);

  std::optional<double> temperature() const;  ///< Of the ranking losses.
  std::optional<std::int64_t> queued() const;

 private:
  using Any = std::variant<losses::SmoothAp, losses::RecallAtQuantile, losses::PAucAtBudget,
                           losses::CrossEntropy, losses::SigmoidFocal, losses::SoftmaxFocal>;
  static Any make(LossKind kind, const LossProblem& problem);

  Any loss_;
};

}  // namespace tutti::tool
