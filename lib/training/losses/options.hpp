#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <tutti/losses/p_auc_at_budget.hpp>
#include <tutti/process_group.hpp>

#include "values/fail.hpp"

// Options that several losses share: the words for enumerators in errors and in options that ranks
// compare, range checks, and the factor of a GradScale.

namespace tutti::internal::losses {

template <std::size_t N, typename Enum>
constexpr std::string_view word_of(const std::array<std::string_view, N>& words,
                                   Enum value) noexcept {
  const auto index = static_cast<std::size_t>(value);
  return index < N ? words[index] : "?";
}

constexpr std::string_view word(tutti::losses::Reduction value) noexcept {
  return word_of<3>({"mean", "sum", "none"}, value);
}
constexpr std::string_view word(GradScale value) noexcept {
  return word_of<3>({"sum", "mean", "local_slice"}, value);
}
/// The factor of gradients. A null group means a single process.
inline double scale_of(GradScale scale, const ProcessGroup* group) {
  return scale == GradScale::sum && group != nullptr ? group->size() : 1.0;
}
constexpr std::string_view word(tutti::losses::Interpolation value) noexcept {
  return word_of<5>({"linear", "lower", "higher", "nearest", "midpoint"}, value);
}
constexpr std::string_view word(tutti::losses::Budget value) noexcept {
  return word_of<2>({"rows", "weight"}, value);
}
constexpr std::string_view word(tutti::losses::PAucAtBudgetOptions::Surrogate value) noexcept {
  return word_of<2>({"trapezoid", "pairwise"}, value);
}
constexpr std::string_view word(tutti::losses::PAucAtBudgetOptions::Scale value) noexcept {
  return word_of<2>({"iqr", "band"}, value);
}
constexpr std::string_view word(tutti::losses::PAucAtBudgetOptions::Basis value) noexcept {
  return word_of<2>({"fpr", "population"}, value);
}
constexpr std::string_view word(tutti::losses::PAucAtBudgetOptions::Positives value) noexcept {
  return word_of<2>({"pool", "live"}, value);
}

inline void check_classes(std::string_view loss, std::int64_t classes) {
  if (classes <= 0)
    failf(Errc::invalid_argument, "{}: classes is {}; it must be 1 or more", loss, classes);
}
inline void check_weight(std::string_view loss, std::string_view what, double weight) {
  if (!(weight >= 0) || !std::isfinite(weight))
    failf(Errc::invalid_argument, "{}: {} is {}; it must be 0 or more", loss, what, weight);
}
/// Refuses an interpolation that Budget::weight would not use.
inline void check_budget(std::string_view loss, tutti::losses::Budget budget,
                         tutti::losses::Interpolation interpolation) {
  if (budget == tutti::losses::Budget::weight &&
      interpolation != tutti::losses::Interpolation::higher)
    failf(Errc::invalid_argument,
          "{}: budget is weight and interpolation {}; quantiles by weight are not interpolated: "
          "use higher, or budget rows",
          loss, word(interpolation));
}
inline void check_label_smoothing(std::string_view loss, double smoothing) {
  if (!(smoothing >= 0 && smoothing <= 1))
    failf(Errc::invalid_argument, "{}: label_smoothing is {}; it must be 0 to 1", loss, smoothing);
}

}  // namespace tutti::internal::losses
