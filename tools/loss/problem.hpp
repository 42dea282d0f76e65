#pragma once

#include <cstdint>
#include <optional>

#include <tutti/dtype.hpp>
#include <tutti/losses/p_auc_at_budget.hpp>
#include <tutti/row_layout.hpp>
#include <tutti/tensor.hpp>

#include "common/names.hpp"

// The input of `tutti loss`: synthetic rows and the options.

namespace tutti::tool {

enum class LossKind : std::uint8_t {
  smooth_ap,
  recall_at_quantile,
  p_auc_at_budget,
  cross_entropy,
  sigmoid_focal,
  softmax_focal
};
template <>
inline constexpr Names<6> names_of<LossKind>{"smooth_ap",       "recall_at_quantile",
                                             "p_auc_at_budget", "cross_entropy",
                                             "sigmoid_focal",   "softmax_focal"};

/// True for losses of a pool of rows; the other losses are sums over rows.
constexpr bool is_ranking(LossKind kind) noexcept {
  return kind <= LossKind::p_auc_at_budget;
}
constexpr bool is_focal(LossKind kind) noexcept {
  return kind >= LossKind::sigmoid_focal;
}

using Surrogate = losses::PAucAtBudgetOptions::Surrogate;
template <>
inline constexpr Names<2> names_of<Surrogate>{"trapezoid", "pairwise"};

/// The parameters of a run. The same on every rank.
struct LossProblem {
  std::int64_t rows = 10'000;  ///< Rows of one call, all ranks together.
  std::int64_t classes = 1;
  double positive_rate =
      0.05;  ///< With several classes: the share of all classes but class 0, in equal parts.
  double ignore_rate = 0;
  DType dtype = DType::f32;  ///< f32 or f64.
  std::uint64_t seed = 0;

  std::optional<double> temperature{};         ///< Empty: the loss's default.
  double quantile = 0.005;                     ///< recall_at_quantile.
  double budget = 0.005;                       ///< p_auc_at_budget: its beta.
  Surrogate surrogate = Surrogate::trapezoid;  ///< p_auc_at_budget.
  double gamma = 2;                            ///< Focal losses.
  std::int64_t queue = 0;                      ///< Ranking losses.
  int threads = 1;                             ///< smooth_ap: threads of each rank.
};

/// The target of row i of the stream, the same on every rank. Scores are normally distributed, one
/// higher for the row's own class, and rounded to the dtype.
std::int64_t target_of(const LossProblem& problem, std::int64_t row) noexcept;
bool belongs_to(const LossProblem& problem, std::int64_t row, std::int64_t class_index) noexcept;
double score_of(const LossProblem& problem, std::int64_t row, std::int64_t class_index) noexcept;

/// Rows as arguments of a loss. Move-only.
struct LossRows {
  Tensor logits;   ///< [n, C]
  Tensor targets;  ///< i64 [n]; for sigmoid_focal: [n, C], each 0 or 1, in the logits' dtype.
};

/// Makes rows [first, first + count) of the stream, which has no end.
LossRows make_rows(const LossProblem& problem, LossKind kind, std::int64_t first,
                   std::int64_t count);

/// The distribution of a call's rows over the ranks.
enum class Split : std::uint8_t {
  even,    ///< Counts differ by one at most.
  uneven,  ///< Rank r has r + 1 parts; with three or more ranks the middle one has no rows.
  one      ///< All rows are on the last rank.
};
template <>
inline constexpr Names<3> names_of<Split>{"even", "uneven", "one"};

RowLayout split_rows(Split split, std::int64_t rows, int ranks);

}  // namespace tutti::tool
