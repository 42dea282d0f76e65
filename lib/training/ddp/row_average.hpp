#pragma once

#include <optional>
#include <string>

#include <tutti/ddp/gradient_reducer.hpp>

namespace tutti::ddp {

/// The rows of a step with ReducerOptions::average_over_rows: counted on this rank, summed over the
/// ranks, and the divisor of the gradients.
class RowAverage {
 public:
  RowAverage(ProcessGroup& group, const ReducerOptions& options);

  bool is_on() const noexcept { return on_; }
  /// Counts the rows of a micro-batch. A wrong number, or none where one is due, stays.
  void add(std::optional<double> rows) noexcept;
  /// Returns an error text for the end of a step with or without a number of rows; empty if right.
  std::string problem(bool has_rows) const;
  void reset() noexcept { mine_ = 0; }

  /// Starts the sum over the ranks: 8 bytes. `counts`: false for a step without a batch.
  void launch(bool counts);
  Work& work() noexcept { return work_; }
  /// Divides by all rows instead of `divided`, by which the gradient is divided. Without any row,
  /// NaN becomes 0 too: it may be the mean loss of no rows.
  void divide(const TensorView& gradient, double divided) const;

 private:
  ProcessGroup& group_;
  const bool on_;
  const CallOptions call_;
  double mine_ = 0;
  double all_ = 0;
  Work work_{};
};

}  // namespace tutti::ddp
