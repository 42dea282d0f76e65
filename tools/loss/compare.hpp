#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <tutti/tensor.hpp>

namespace tutti::tool {

/// A number that differs from the number of one process.
struct LossMismatch {
  int rank = 0;
  std::int64_t call = 0;
  std::string array{};     ///< "loss" or "gradient".
  std::int64_t index = 0;  ///< Index of the element in [N, C], over all ranks' rows.
  std::string expected{};
  std::string got{};
  double difference = 0;  ///< Relative difference.
};

/// Differences from the numbers of one process.
struct LossDifferences {
  double loss = 0;         ///< Largest relative difference of a loss.
  double gradient = 0;     ///< Largest relative difference of a gradient.
  std::int64_t wrong = 0;  ///< Numbers beyond the tolerance.
  std::optional<LossMismatch> worst{};

  /// Adds the differences of other numbers.
  void add(const LossDifferences& others);
};

/// Compares the results of a rank with those of one process. Differences are relative. The scale of
/// a gradient is the largest element of the whole gradient. The scale of a loss is its value, at
/// least 1 (ranking losses are 1 minus a mean). Infinities and NaNs must be equal.
class LossComparison {
 public:
  LossComparison(int rank, double tolerance) : rank_(rank), tolerance_(tolerance) {}

  void loss(std::int64_t call, double expected, double got);
  /// `expected` has the gradient of all rows; `got` has the rows from `first_row` on, in f32 or
  /// f64.
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
