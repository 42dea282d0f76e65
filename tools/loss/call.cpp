#include "loss/call.hpp"

#include <concepts>
#include <utility>

#include <tutti/losses/cross_entropy.hpp>
#include <tutti/losses/focal.hpp>
#include <tutti/losses/recall_at_quantile.hpp>
#include <tutti/losses/smooth_ap.hpp>

namespace tutti::tool {
namespace {

/// The options that all ranking losses have.
template <typename Options>
Options ranking_options(const LossProblem& problem) {
  Options options;
  options.classes = problem.classes;
  if (problem.temperature) options.temperature = *problem.temperature;
  options.scale = GradScale::mean;
  options.pool.queue = problem.queue;
  return options;
}

}  // namespace

template <typename Loss>
void LossCall::set(Loss made) {
  const auto loss = std::make_shared<Loss>(std::move(made));
  if constexpr (std::derived_from<Loss, losses::RankingLoss>) ranking_ = loss;
  const auto call = [loss](ProcessGroup* group, const auto&... arrays) {
    return group == nullptr ? (*loss)(arrays...) : (*loss)(*group, arrays...);
  };
  call_ = [call](ProcessGroup* group, const LossRows& rows) {
    if constexpr (std::invocable<Loss, losses::RankingBatch>)
      return call(group, losses::RankingBatch{rows.logits, rows.targets});
    else
      return call(group, rows.logits, rows.targets);
  };
}

std::vector<losses::PAucDiagnostics> LossCall::diagnostics() const {
  const auto* loss = dynamic_cast<const losses::PAucAtBudget*>(ranking_.get());
  return loss == nullptr ? std::vector<losses::PAucDiagnostics>() : loss->diagnostics();
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
      return set(losses::CrossEntropy({.classes = problem.classes, .scale = GradScale::mean}));
    case LossKind::sigmoid_focal:
      return set(losses::SigmoidFocal({.gamma = problem.gamma, .scale = GradScale::mean}));
    case LossKind::softmax_focal:
      return set(losses::SoftmaxFocal({.gamma = problem.gamma, .scale = GradScale::mean}));
  }
}

}  // namespace tutti::tool
