#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <tutti/ddp/gradient_reducer.hpp>

namespace tutti::ddp {

/// What the ranks tell each other at the end of a step: whether one of them has made a mistake,
/// whether all lack the same gradients, and with find_unused_parameters which gradients there are.
///
/// 3 words of 64 bits, and one per parameter, reduced with `max`:
///   W - rank of a rank with a mistake, so that the lowest counts; 0 without
///   hash of the unused parameters, and its complement: all are equal if the maxima are complements
///   1 for each parameter that has a gradient
class StepStatus {
 public:
  StepStatus(ProcessGroup& group, std::span<const Parameter> parameters,
             const ReducerOptions& options);

  /// Whether steps have a status.
  bool is_exchanged() const noexcept { return exchanged_; }

  /// Launches the exchange.
  /// @param used   by id: 1 where this rank has a gradient.
  /// @param wrong  this rank has made a mistake.
  /// @param empty  this rank has no batch, so that it lacks gradients for a reason.
  Work launch(std::span<const std::uint8_t> used, bool wrong, bool empty);

  /// After the Work. Gives the error of the step, the same on all ranks; empty without one.
  /// Collective after a mistake.
  /// @param problem  of this rank.
  std::string read(const std::string& problem);
  bool is_used(std::size_t id) const noexcept { return words_[first_used + id] != 0; }

 private:
  static constexpr std::size_t first_used = 3;
  std::string find_difference();

  ProcessGroup& group_;
  std::span<const Parameter> parameters_;
  bool find_unused_;
  bool exchanged_;
  CallOptions call_;
  std::vector<std::uint64_t> words_;
  std::string used_;  // For find_difference(): '1', '0', or all '-' for a rank without a batch.
  Tensor array_;
};

}  // namespace tutti::ddp
