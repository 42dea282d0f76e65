#pragma once

#include <cstdint>
#include <vector>

#include <tutti/tensor.hpp>

// What the losses have in common. A loss sees the rows of all ranks: its value is that of one
// process with the concatenated batch, on every rank, whatever the split; ranks may be without
// rows. A call gives the loss and the gradient of the caller's own rows. Collective: every rank
// calls, in the same order; a null group is this process alone. docs/losses.md.
//
// Arrays are on the host or on the group's device, on each rank as it likes. What is on the device
// is copied to pinned host memory behind what CallOptions::stream has to do, and the gradient back;
// the host waits, so a stream that is captured into a graph is refused (unsupported), and so are
// arrays of another device, or of any without a group to copy them with.

namespace tutti {
namespace [[gnu::visibility("default")]] losses {

/// Over what counts: classes (ranking losses), rows (SoftmaxFocal, CrossEntropy) or elements
/// (SigmoidFocal).
enum class Reduction : std::uint8_t {
  mean,
  sum,
  none,  ///< LossResult::each; its gradient is that of the sum, whose columns or rows are apart.
  mean_positive,  ///< Focal losses: the sum over all, divided by the number of positive ones.
};

/// By what the gradient is multiplied, so that the reducer behind it makes the gradient of the
/// global loss of it.
enum class GradScale : std::uint8_t {
  for_mean_reducer,  ///< W: it averages over ranks, as data-parallel trainers do.
  for_sum_reducer,   ///< 1: it adds.
  none,              ///< 1: the gradient itself.
};

/// Between the two order statistics next to a quantile, as torch.quantile has it. nearest takes the
/// even one of two that are as near.
enum class Interpolation : std::uint8_t { linear, lower, higher, nearest, midpoint };

/// Targets that count nowhere: padding.
inline constexpr std::int64_t default_ignore_index = -100;

struct LossResult {
  double loss = 0;  ///< The same on every rank. Without anything that counts: 0, with gradient 0.
  /// d loss / d logits of this rank's rows, in their shape and dtype and on their device (then from
  /// the group's memory, ordered on the call's stream), multiplied as GradScale says: by default W
  /// times the gradient, for a reducer that divides by W.
  Tensor grad;
  /// Ranking losses: the loss of each class, [C]; NaN where a class is not valid. Focal losses and
  /// CrossEntropy with Reduction::none: of each row or element of this rank.
  std::vector<double> each;
  std::vector<std::uint8_t> valid;  ///< Ranking losses: [C], 1 where a class is.
  /// What this rank computed: values of σ and σ' of pairs of rows, or of series that stand for
  /// them. Ranking losses share it between the ranks, but for a few rows.
  std::uint64_t evaluations = 0;
};

}  // namespace losses
}  // namespace tutti
