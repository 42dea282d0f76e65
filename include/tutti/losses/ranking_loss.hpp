#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <tutti/losses/loss.hpp>
#include <tutti/process_group.hpp>

// What the ranking losses have in common: the pool of rows that they look at.

namespace tutti {
namespace internal::losses {
class RowQueue;
}
namespace [[gnu::visibility("default")]] losses {

/// The rows of this rank. Each array is on the host or on the group's device.
struct RankingBatch {
  ConstTensorView logits;   ///< [N_r, C]: f32, f64, f16, bf16. Finite.
  ConstTensorView targets;  ///< i64 [N_r] or [N_r, 1]. One class: 0 or 1; otherwise 0 to C - 1.
  /// PAucAtBudget: which rows were drawn independently, boolean or u8 [N_r]; empty: all.
  ConstTensorView iid{nullptr, DType::boolean, Shape::vector(0)};
  /// false: evaluation. Rows of the queue count, and the loss keeps nothing of the call.
  bool training = true;
};

/// Which rows a ranking loss looks at. The same on every rank.
struct PoolOptions {
  /// So many rows of earlier calls stay in the pool, without gradient: the last ones of all ranks
  /// together that were not ignored. Each rank keeps its own of them. 0: none.
  std::int64_t queue = 0;
  /// A larger pool is sampled, the same rows on every rank and for any split: for each class that
  /// occurs max(1, max_rows / (2 n)) of its rows, n being how many do, then any. 0: all rows count.
  std::int64_t max_rows = 0;
  std::uint64_t seed = 0;  ///< Of the samples; they differ from call to call in training.
  /// false: the batch is that of all ranks already (autograd::all_gather_rows), so that every
  /// rank computes what one process would; the group only copies what lies on its device.
  bool gather = true;
  /// What imbalanced-losses 0.5.1 does otherwise, for comparisons: for_mean_reducer multiplies by
  /// 1, ignored rows take places in the queue, which keeps floats, and (SmoothAp, PAucAtBudget)
  /// targets outside of the classes are negatives of all,
  /// and of one class everything but 0 is positive.
  bool reference_compat = false;
};

/// A loss of the pool: the rows of all ranks in this call that are not ignored, then the queue.
///
/// A call that throws leaves no trace: nothing is enqueued. Ranks whose losses remember different
/// calls are refused with an Error mismatch. One call at a time; otherwise thread rules are those
/// of the group.
class RankingLoss {
 public:
  RankingLoss(RankingLoss&&) noexcept;
  RankingLoss& operator=(RankingLoss&&) noexcept;
  virtual ~RankingLoss();

  /// @throws Error on every rank, where it began invalid_argument (unsupported for a device that
  ///         is not the group's, count_overflow for 2^31 rows) and mismatch elsewhere: shapes,
  ///         targets outside of the classes, logits that are not finite; and mismatch when ranks
  ///         have different options. On this rank alone, unsupported, for a captured stream.
  LossResult operator()(ProcessGroup* group, const RankingBatch& batch,
                        const CallOptions& call = {}) {
    return compute(group, batch, call);
  }

  /// Options::temperature until it is set, to the same on every rank.
  double temperature() const noexcept { return temperature_; }
  void set_temperature(double temperature);

  bool gathers() const noexcept;         ///< PoolOptions::gather.
  std::int64_t queued() const noexcept;  ///< Rows in the queue, all ranks together.
  void reset_queue() noexcept;           ///< Forgets the rows of all calls so far. On every rank.

  /// Collective: the queue of all ranks, the calls so far and the temperature; the same bytes on
  /// every rank, so that one may write them for all.
  std::string save(ProcessGroup* group, const CallOptions& call = {}) const;
  /// What save() gave, on any number of ranks; the same bytes on every rank.
  /// @throws Error invalid_argument when it is not that, or of a loss with other classes or queue;
  ///         then nothing is changed.
  void load(ProcessGroup* group, std::string_view state);

 protected:
  /// name: of the loss, in its errors; a literal.
  RankingLoss(std::string_view name, std::int64_t classes, double temperature, Reduction reduction,
              const PoolOptions& pool);
  std::string_view name() const noexcept { return name_; }
  /// Null where the caller has gathered.
  ProcessGroup* group_of(ProcessGroup* group) const noexcept;
  internal::losses::RowQueue& queue() const noexcept { return *queue_; }

 private:
  virtual LossResult compute(ProcessGroup* group, const RankingBatch& batch,
                             const CallOptions& call) = 0;

  std::string_view name_;
  std::int64_t classes_;
  double temperature_;
  std::unique_ptr<internal::losses::RowQueue> queue_;
};

}  // namespace losses
}  // namespace tutti
