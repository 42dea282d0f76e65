#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include <tutti/losses/p_auc_at_budget.hpp>

// Options as they are written, for errors.

namespace tutti::internal::losses {

template <std::size_t N, typename Enum>
constexpr std::string_view word_of(const std::array<std::string_view, N>& words,
                                   Enum value) noexcept {
  const auto index = static_cast<std::size_t>(value);
  return index < N ? words[index] : "?";
}

constexpr std::string_view word(tutti::losses::Reduction value) noexcept {
  return word_of<4>({"mean", "sum", "none", "mean_positive"}, value);
}
constexpr std::string_view word(tutti::losses::GradScale value) noexcept {
  return word_of<3>({"for_mean_reducer", "for_sum_reducer", "none"}, value);
}
constexpr std::string_view word(tutti::losses::Interpolation value) noexcept {
  return word_of<5>({"linear", "lower", "higher", "nearest", "midpoint"}, value);
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

}  // namespace tutti::internal::losses
