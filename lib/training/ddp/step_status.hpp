#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <tutti/ddp/gradient_reducer.hpp>

namespace tutti::ddp {

/// Exchanges the status of the ranks at the end of a step: whether a rank made a mistake, whether
/// all ranks lack the same gradients, and, with find_unused_parameters, which gradients exist.
///
/// Words of 64 bits, reduced with `max`:
///   W - rank if this rank made a mistake, so that the lowest rank wins; otherwise 0
///   hash of the unused parameters, then its complement: ranks agree if the maxima are complements
///   1 if this rank has no batch, and therefore contributes no hash
///   with find_unused_parameters, one per parameter: 1 if it has a gradient
class StepStatus {
 public:
  StepStatus(ProcessGroup& group, std::span<const Parameter> parameters,
             const ReducerOptions& options);

  /// True if steps exchange a status.
  bool is_exchanged() const noexcept { return exchanged_; }

  /// Launches the exchange.
  /// @param used   by id: 1 if this rank has a gradient.
  /// @param wrong  true if this rank made a mistake.
  /// @param empty  true if this rank has no batch, and therefore no gradients.
  Work launch(std::span<const std::uint8_t> used, bool wrong, bool empty);

  /// Reads the result after the Work has ended. Returns the error of the step, the same on all
  /// ranks; empty without an error. Collective if there is an error.
  /// @param problem  this rank's mistake.
  std::string read(const std::string& problem);
  /// True if any rank had a gradient of `id`. Call it after read() has returned no error.
  bool is_used(std::size_t id) const noexcept {
    return find_unused_ ? words_[first_used + id] != 0 : used_[id] == '1';
  }

 private:
  static constexpr std::size_t first_used = 4;
  /// Completes used_ on ranks without a batch. Collective if they need it from another rank.
  void learn_used();
  std::string find_difference();

  ProcessGroup& group_;
  std::span<const Parameter> parameters_;
  bool find_unused_;
  bool exchanged_;
  CallOptions call_;
  std::vector<std::uint64_t> words_;
  std::string used_;  // By id: '1' or '0'; '-' without a batch.
  Tensor array_;
};

}  // namespace tutti::ddp
