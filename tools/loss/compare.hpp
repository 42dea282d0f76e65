#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <tutti/tensor.hpp>

namespace tutti::tool {

/// A number that is not that of one process.
struct LossMismatch {
  int rank = 0;
  std::int64_t call = 0;
  std::string array{};     ///< "loss" or "gradient".
  std::int64_t index = 0;  ///< Of the element in [N, C], all ranks' rows together.
  std::string expected{};
  std::string got{};
  double difference = 0;  ///< Relative.
};

/// How far numbers are from those of one process.
struct LossDifferences {
  double loss = 0;         ///< The largest, relative.
  double gradient = 0;     ///< The same.
  std::int64_t wrong = 0;  ///< Numbers beyond the tolerance.
  std::optional<LossMismatch> worst{};

  /// Of other numbers as well.
  void add(const LossDifferences& others);
};

/// Holds what a rank computed against what one process computed. Differences are relative: a
/// gradient's to the largest element of the whole gradient, a loss's to itself, or to 1 where that
/// is more (ranking losses are 1 minus a mean). What is not finite has to be equal.
class LossComparison {
 public:
  LossComparison(int rank, double tolerance) : rank_(rank), tolerance_(tolerance) {}

  void loss(std::int64_t call, double expected, double got);
  /// `expected` has the gradient of all rows; `got` that of rows [first_row, ...), f32 or f64.
  void gradient(std::int64_t call, const ConstTensorView& expected, std::int64_t first_row,
                const ConstTensorView& got);

  const LossDifferences& found() const noexcept { return found_; }

 private:
  double compare(std::int64_t call, std::string_view array, std::int64_t index, double expected,
                 double got, double scale);

  int rank_;
  double tolerance_;
  LossDifferences found_{};
};

}  // namespace tutti::tool
