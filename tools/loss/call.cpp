#include "loss/call.hpp"

#include <concepts>

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

template <typename Loss>
constexpr bool has_pool = std::derived_from<Loss, losses::RankingLoss>;

}  // namespace

LossCall::LossCall(LossKind kind, const LossProblem& problem) : loss_(make(kind, problem)) {}

LossCall::Any LossCall::make(LossKind kind, const LossProblem& problem) {
  switch (kind) {
    case LossKind::smooth_ap: {
      auto options = ranking_options<losses::SmoothApOptions>(problem);
      options.threads = problem.threads;
      return losses::SmoothAp(options);
    }
    case LossKind::recall_at_quantile: {
      auto options = ranking_options<losses::RecallAtQuantileOptions>(problem);
      options.quantile = problem.quantile;
      return losses::RecallAtQuantile(options);
    }
    case LossKind::p_auc_at_budget: {
      auto options = ranking_options<losses::PAucAtBudgetOptions>(problem);
      options.beta = problem.budget;
      if (problem.surrogate == Surrogate::pairwise)
        options.surrogate = losses::PAucAtBudgetOptions::Surrogate::pairwise;
      return losses::PAucAtBudget(options);
    }
    case LossKind::cross_entropy:
      return losses::CrossEntropy({.classes = problem.classes, .scale = GradScale::none});
    case LossKind::sigmoid_focal:
      return losses::SigmoidFocal({.gamma = problem.gamma, .scale = GradScale::none});
    case LossKind::softmax_focal:
      break;
  }
  return losses::SoftmaxFocal({.gamma = problem.gamma, .scale = GradScale::none});
}

losses::PAucResult LossCall::operator()(ProcessGroup* group, const LossRows& rows) {
  return std::visit(
      [&]<typename Loss>(Loss& loss) -> losses::PAucResult {
        if constexpr (std::same_as<Loss, losses::PAucAtBudget>)
          return loss(group, {rows.logits, rows.targets});
        else if constexpr (has_pool<Loss> || std::same_as<Loss, losses::CrossEntropy>)
          return {loss(group, {rows.logits, rows.targets}), {}};
        else
          return {loss(group, rows.logits, rows.targets), {}};
      },
      loss_);
}

std::optional<double> LossCall::temperature() const {
  return std::visit(
      []<typename Loss>(const Loss& loss) -> std::optional<double> {
        if constexpr (has_pool<Loss>) return loss.temperature();
        return std::nullopt;
      },
      loss_);
}

std::optional<std::int64_t> LossCall::queued() const {
  return std::visit(
      []<typename Loss>(const Loss& loss) -> std::optional<std::int64_t> {
        if constexpr (has_pool<Loss>) return loss.queued();
        return std::nullopt;
      },
      loss_);
}

}  // namespace tutti::tool
