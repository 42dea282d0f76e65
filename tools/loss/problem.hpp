#pragma once

#include <cstdint>
#include <optional>

#include <tutti/dtype.hpp>
#include <tutti/losses/p_auc_at_budget.hpp>
#include <tutti/row_layout.hpp>
#include <tutti/tensor.hpp>

#include "common/names.hpp"

// What the losses of `tutti loss` are asked: synthetic rows and the options.

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

/// Looks at a pool of rows; the others look at each row alone.
constexpr bool is_ranking(LossKind kind) noexcept {
  return kind <= LossKind::p_auc_at_budget;
}
constexpr bool is_focal(LossKind kind) noexcept {
  return kind >= LossKind::sigmoid_focal;
}

using Surrogate = losses::PAucAtBudgetOptions::Surrogate;
template <>
inline constexpr Names<2> names_of<Surrogate>{"trapezoid", "pairwise"};

/// The same on every rank.
struct LossProblem {
  std::int64_t rows = 10'000;  ///< Of one call, all ranks together.
  std::int64_t classes = 1;
  double positive_rate = 0.05;  ///< Of several classes: all but class 0, in equal parts.
  double ignore_rate = 0;
  DType dtype = DType::f32;  ///< f32 or f64.
  std::uint64_t seed = 0;

  std::optional<double> temperature{};         ///< Empty: what the loss has without it.
  double quantile = 0.005;                     ///< recall_at_quantile.
  double budget = 0.005;                       ///< p_auc_at_budget: its beta.
  Surrogate surrogate = Surrogate::trapezoid;  ///< p_auc_at_budget.
  double gamma = 2;                            ///< The focal losses.
  std::int64_t queue = 0;                      ///< The ranking losses.
  int threads = 1;                             ///< smooth_ap: of each rank.
};

/// What row i of the stream is: the same whoever asks. Scores are normal, those of a row's own
/// class higher by one, and rounded to the dtype.
std::int64_t target_of(const LossProblem& problem, std::int64_t row) noexcept;
bool belongs_to(const LossProblem& problem, std::int64_t row, std::int64_t class_index) noexcept;
double score_of(const LossProblem& problem, std::int64_t row, std::int64_t class_index) noexcept;

/// Rows as a loss takes them. Move-only.
struct LossRows {
  Tensor logits;   ///< [n, C]
  Tensor targets;  ///< i64 [n]; for sigmoid_focal [n, C] of 0 and 1 in the dtype of the logits.
};

/// Rows [first, first + count) of the stream, which has no end.
LossRows make_rows(const LossProblem& problem, LossKind kind, std::int64_t first,
                   std::int64_t count);

/// How the rows of a call lie on the ranks.
enum class Split : std::uint8_t {
  even,    ///< Counts differ by one at most.
  uneven,  ///< Rank r has r + 1 parts; of three ranks or more the middle one has nothing.
  one      ///< All rows are on the last rank.
};
template <>
inline constexpr Names<3> names_of<Split>{"even", "uneven", "one"};

RowLayout split_rows(Split split, std::int64_t rows, int ranks);

}  // namespace tutti::tool
