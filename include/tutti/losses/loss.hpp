#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <tutti/grad_scale.hpp>
#include <tutti/rows.hpp>
#include <tutti/tensor.hpp>

// Types that all losses share. A loss is a function of the rows of all ranks: every rank gets the
// loss that one process computes for the concatenated batch, and the gradient of its own rows. The
// result does not depend on the split; a rank may have no rows. docs/losses.md.
//
// A call with a group is collective: every rank calls, in the same order. A call without a group
// computes the loss of this process alone.
//
// Arrays are on the host or on the group's device; ranks may differ. Device arrays are copied to
// pinned host memory in the order of CallOptions::stream, and the gradient is copied back. The host
// waits for the copies. Refused with Error unsupported: a stream that is being captured into a
// graph, arrays of another device, and device arrays without a group.

namespace tutti {
/// Losses over the rows of all ranks, and their gradients.
namespace [[gnu::visibility("default")]] losses {

/// The combination of a loss's terms, one for each class (ranking losses), row (SoftmaxFocal,
/// CrossEntropy) or element (SigmoidFocal). Counts are over all ranks.
enum class Reduction : std::uint8_t {
  mean,
  sum,
  /// The terms are in LossResult::per_class or per_element. Loss and gradient are those of `sum`;
  /// each column (class), row or element of the gradient belongs to one term.
  none,
};

/// The choice of a value between the two order statistics next to a quantile, as in torch.quantile.
/// `nearest` rounds a tie to the even position.
enum class Interpolation : std::uint8_t { linear, lower, higher, nearest, midpoint };

/// The quantity that a share of the rows is measured by: their number, or the sum of their weights
/// (Batch::weight; 1 without). Q(q) is then the lowest score at which the sum of the
/// weights, from the lowest score on, is at least q times the sum of all; there is no
/// interpolation.
enum class Budget : std::uint8_t { rows, weight };

/// The target of ignored rows: padding.
inline constexpr std::int64_t default_ignore_index = -100;

/// Why a class of a ranking loss is not valid; of several reasons the first one.
enum class ClassStatus : std::uint8_t {
  valid,
  no_positives,
  no_negatives,       ///< All rows are positive. PAucAtBudget: none is independent.
  no_live_positives,  ///< PAucAtBudget with Positives::live: all positives are in the queue.
  /// The weights of the positives that count are all 0, or with Budget::weight those of the rows
  /// that Q is of.
  no_weight,
  no_spread,   ///< PAucAtBudget: the scale is 1e-12 or less.
  empty_band,  ///< PAucAtBudget, pairwise: no negative is in the band.
};

/// The rows of this rank. Each array is on the host or on the group's device. Ranking losses and
/// CrossEntropy take the shapes below; the focal losses name theirs.
struct Batch {
  ConstTensorView logits;   ///< [N_r, C]; f32, f64, f16 or bf16; finite.
  ConstTensorView targets;  ///< i64 [N_r] or [N_r, 1]. One class: 0 or 1; several: 0 to C - 1.
  /// PAucAtBudget: marks rows that were drawn independently; boolean or u8 [N_r]. Empty: all rows.
  ConstTensorView iid{nullptr, DType::boolean, Shape::vector(0)};
  /// Ranking losses: false is an evaluation. Rows in the queue count, and the loss stores nothing
  /// of the call.
  bool training = true;
  /// The weight of each row, [N_r]; f64, f32, f16 or bf16; finite, 0 or more; constants for the
  /// gradient. A ranking loss is then the weighted mean over the positives; ranks, thresholds and
  /// samples do not depend on weights. Terms of other losses are multiplied by their weights, and
  /// the divisors of means are sums of weights. All ranks pass weights or none does, also a rank
  /// without rows.
  std::optional<ConstTensorView> weight{};
  /// With PoolOptions::gather false: the number of rows of this call of each rank, which come first
  /// in the batch, in rank order. The rows behind them are of a queue that the caller keeps,
  /// without gradient. The ranks then share the work of SmoothAp, and the gradient of other ranks'
  /// rows is 0. Every rank passes the same rows. On the wire: what SmoothAp sends after its rows,
  /// and a hash of the pool, which the ranks compare.
  Rows pool_rows{};
};

/// The result of a loss on one rank.
struct LossResult {
  /// The same on every rank. Without valid terms it is 0, with gradient 0.
  double loss = 0;
  /// d loss / d logits of this rank's rows, times the factor of GradScale. Shape, dtype and device
  /// are those of the logits. On a device it is in the group's memory, ordered on the call's
  /// stream.
  Tensor grad;
  /// Ranking losses: the loss of each class, [C]; NaN for a class that is not valid.
  std::vector<double> per_class;
  /// Focal losses and CrossEntropy with Reduction::none: the loss of each row or element of this
  /// rank. Ignored rows have 0.
  std::vector<double> per_element;
  std::vector<ClassStatus> status;  ///< Ranking losses: `valid`, or why the class is not, [C].
};

}  // namespace losses
}  // namespace tutti
