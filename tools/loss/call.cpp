#include "loss/call.hpp"

#include <concepts>
#include <utility>

#include <tutti/losses/cross_entropy.hpp>
#include <tutti/losses/focal.hpp>
#include <tutti/losses/recall_at_quantile.hpp>
#include <tutti/losses/smooth_ap.hpp>

namespace tutti::tool {
namespace {

using losses::GradScale;

/// What the ranking losses have in common.
template <typename Options>
Options ranking_options(const LossProblem& problem) {
  Options options;
  options.classes = problem.classes;
  if (problem.temperature) options.temperature = *problem.temperature;
  options.scale = GradScale::none;
  options.pool.queue = problem.queue;
  return options;
}

}  // namespace

template <typename Loss>
void LossCall::set(Loss made) {
  const auto loss = std::make_shared<Loss>(std::move(made));
  if constexpr (std::derived_from<Loss, losses::RankingLoss>) ranking_ = loss;
  call_ = [loss](ProcessGroup* group, const LossRows& rows) -> losses::PAucResult {
    if constexpr (std::same_as<Loss, losses::PAucAtBudget>)
      return (*loss)(group, {rows.logits, rows.targets});
    else if constexpr (std::invocable<Loss, ProcessGroup*, losses::RankingBatch>)
      return {(*loss)(group, {rows.logits, rows.targets}), {}};
    else
      return {(*loss)(group, rows.logits, rows.targets), {}};
  };
}

void LossCall::make(LossKind kind, const LossProblem& problem) {
  switch (kind) {
    case LossKind::smooth_ap: {
      auto options = ranking_options<losses::SmoothApOptions>(problem);
      options.threads = problem.threads;
      return set(losses::SmoothAp(options));
    }
    case LossKind::recall_at_quantile: {
      auto options = ranking_options<losses::RecallAtQuantileOptions>(problem);
      options.quantile = problem.quantile;
      return set(losses::RecallAtQuantile(options));
    }
    case LossKind::p_auc_at_budget: {
      auto options = ranking_options<losses::PAucAtBudgetOptions>(problem);
      options.beta = problem.budget;
      options.surrogate = problem.surrogate;
      return set(losses::PAucAtBudget(options));
    }
    case LossKind::cross_entropy:
      return set(losses::CrossEntropy({.classes = problem.classes, .scale = GradScale::none}));
    case LossKind::sigmoid_focal:
      return set(losses::SigmoidFocal({.gamma = problem.gamma, .scale = GradScale::none}));
    case LossKind::softmax_focal:
      return set(losses::SoftmaxFocal({.gamma = problem.gamma, .scale = GradScale::none}));
  }
}

}  // namespace tutti::tool
