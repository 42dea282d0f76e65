#include "loss/problem.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <vector>

#include <tutti/losses/loss.hpp>
#include <tutti/memory.hpp>

#include "bench/counts.hpp"
#include "bench/pattern.hpp"

namespace tutti::tool {
namespace {

/// The random draws of a row; its scores begin at `first_score`.
enum Draw : std::uint64_t { is_positive, which_class, is_ignored, first_score };

/// A step of SplitMix64.
constexpr std::uint64_t mixed(std::uint64_t x) noexcept {
  return mix(x + 0x9e3779b97f4a7c15U);
}

/// Random bits of one (seed, row, draw).
std::uint64_t bits(const LossProblem& problem, std::int64_t row, std::uint64_t draw) noexcept {
  return mixed(mixed(mixed(problem.seed) + static_cast<std::uint64_t>(row)) + draw);
}

/// Above 0 and below 1.
double uniform(std::uint32_t bits) noexcept {
  return (static_cast<double>(bits) + 0.5) * 0x1p-32;
}
double uniform(const LossProblem& problem, std::int64_t row, std::uint64_t draw) noexcept {
  return uniform(static_cast<std::uint32_t>(bits(problem, row, draw) >> 32));
}

/// Box, Muller: "A Note on the Generation of Random Normal Deviates", 1958.
double normal(const LossProblem& problem, std::int64_t row, std::uint64_t draw) noexcept {
  const std::uint64_t both = bits(problem, row, draw);
  return std::sqrt(-2 * std::log(uniform(static_cast<std::uint32_t>(both >> 32)))) *
         std::cos(2 * std::numbers::pi * uniform(static_cast<std::uint32_t>(both)));
}

template <typename T>
void fill(const LossProblem& problem, LossKind kind, std::int64_t first, LossRows& rows) {
  T* scores = static_cast<T*>(rows.logits.data());
  const std::int64_t count = rows.logits.shape().rows();
  for (std::int64_t i = 0; i < count; ++i)
    for (std::int64_t c = 0; c < problem.classes; ++c)
      scores[i * problem.classes + c] = static_cast<T>(score_of(problem, first + i, c));
  for (std::int64_t i = 0; i < count; ++i) {
    if (kind != LossKind::sigmoid_focal)
      static_cast<std::int64_t*>(rows.targets.data())[i] = target_of(problem, first + i);
    else
      for (std::int64_t c = 0; c < problem.classes; ++c)
        static_cast<T*>(rows.targets.data())[i * problem.classes + c] =
            belongs_to(problem, first + i, c) ? T{1} : T{0};
  }
}

}  // namespace

std::int64_t target_of(const LossProblem& problem, std::int64_t row) noexcept {
  if (uniform(problem, row, is_ignored) < problem.ignore_rate) return losses::default_ignore_index;
  if (uniform(problem, row, is_positive) >= problem.positive_rate) return 0;
  if (problem.classes <= 2) return 1;
  return 1 + static_cast<std::int64_t>(bits(problem, row, which_class) %
                                       static_cast<std::uint64_t>(problem.classes - 1));
}

bool belongs_to(const LossProblem& problem, std::int64_t row, std::int64_t class_index) noexcept {
  return target_of(problem, row) == (problem.classes == 1 ? 1 : class_index);
}

double score_of(const LossProblem& problem, std::int64_t row, std::int64_t class_index) noexcept {
  const double score = normal(problem, row, first_score + static_cast<std::uint64_t>(class_index)) +
                       (belongs_to(problem, row, class_index) ? 1 : 0);
  return problem.dtype == DType::f64 ? score : static_cast<float>(score);
}

LossRows make_rows(const LossProblem& problem, LossKind kind, std::int64_t first,
                   std::int64_t count) {
  const Shape matrix{count, problem.classes};
  LossRows rows{Tensor(host_memory(), matrix, problem.dtype),
                kind == LossKind::sigmoid_focal
                    ? Tensor(host_memory(), matrix, problem.dtype)
                    : Tensor(host_memory(), Shape::vector(count), DType::i64)};
  if (problem.dtype == DType::f64)
    fill<double>(problem, kind, first, rows);
  else
    fill<float>(problem, kind, first, rows);
  return rows;
}

RowLayout split_rows(Split split, std::int64_t rows, int ranks) {
  std::vector<std::int64_t> parts(static_cast<std::size_t>(ranks), 1);
  if (split == Split::uneven) {
    std::iota(parts.begin(), parts.end(), 1);
    if (ranks >= 3) parts[parts.size() / 2] = 0;
  } else if (split == Split::one) {
    std::fill(parts.begin(), parts.end() - 1, 0);
  }
  return cut_by_weights(rows, parts);
}

}  // namespace tutti::tool
