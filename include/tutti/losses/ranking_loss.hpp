#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/losses/loss.hpp>
#include <tutti/process_group.hpp>

// The base of the ranking losses, and the pool of rows that they evaluate.

namespace tutti {
namespace internal::losses {
class RowQueue;
}
namespace [[gnu::visibility("default")]] losses {

/// The rows of a queue, oldest first.
struct QueuedRows {
  std::vector<double> logits{};         ///< [n, C]
  std::vector<std::int64_t> targets{};  ///< [n]
  std::vector<std::uint8_t> iid{};  ///< [n]: 1 for rows that were drawn independently, otherwise 0.
  std::vector<double> weights{};    ///< [n]: 1 for rows of calls without weights.
};

/// The choice of rows that a ranking loss evaluates. The same on every rank.
struct PoolOptions {
  /// The number of rows of earlier calls that stay in the pool, without gradient: the last rows of
  /// all ranks together that were not ignored. Each rank stores its own. 0: none.
  std::int64_t queue = 0;
  /// A larger pool is sampled to this many rows. 0: no limit. The sample takes
  /// max(1, max_rows / (2 n)) rows of each of the n classes that occur, then any others. All ranks
  /// draw the same rows, for any split.
  std::int64_t max_rows = 0;
  std::uint64_t seed = 0;  ///< Seed of the samples. Each training call draws another sample.
  /// false: the batch already holds the rows of all ranks (autograd::all_gather_rows). Every rank
  /// computes the result of one process, and the group is used only to copy device arrays, unless
  /// Batch::pool_rows is set.
  bool gather = true;
  /// true: targets outside of the classes are negatives of all classes instead of an error; with
  /// one class, every target except 0 is positive.
  bool other_targets = false;
};

/// A loss of a pool of rows: this call's rows of all ranks that are not ignored, then the queue.
///
/// A call that throws leaves the loss unchanged. Losses whose queues hold different calls are
/// refused with Error mismatch. One call at a time; otherwise thread rules are those of the group.
class RankingLoss {
 public:
  RankingLoss(RankingLoss&&) noexcept;
  RankingLoss& operator=(RankingLoss&&) noexcept;
  virtual ~RankingLoss();

  /// @throws Error on every rank. The rank that causes it gets invalid_argument (shapes, targets
  ///         outside of the classes, logits that are not finite), unsupported (a device other than
  ///         the group's) or count_overflow (2^31 rows); other ranks get mismatch. If options
  ///         differ between ranks, every rank gets mismatch. A stream that is being captured is
  ///         unsupported on this rank alone.
  LossResult operator()(ProcessGroup& group, const Batch& batch, const CallOptions& options = {}) {
    return compute(&group, batch, options);
  }
  /// One process, without a group.
  LossResult operator()(const Batch& batch) { return compute(nullptr, batch, {}); }

  /// Options::temperature, or the argument of the last set_temperature(). The same on every rank.
  double temperature() const noexcept { return temperature_; }
  void set_temperature(double temperature);  ///< 1e-300 to 1e300, or Error invalid_argument.

  bool gathers() const noexcept;         ///< PoolOptions::gather.
  std::int64_t queued() const noexcept;  ///< Rows in the queue, all ranks together.
  void reset_queue() noexcept;           ///< Empties the queue. Call it on every rank.

  /// Collective. Adds the rows to the queue as a training call does, without evaluating the loss
  /// and without counting as a call for samples. Rows are those of this rank, or with
  /// PoolOptions::gather false of all ranks. On the wire: each rank sends 8 bytes for each rank.
  /// @throws Error as a call; the queue stays unchanged.
  void enqueue(ProcessGroup& group, const Batch& rows, const CallOptions& options = {}) {
    enqueue_over(&group, rows, options);
  }
  /// One process, without a group.
  void enqueue(const Batch& rows) { enqueue_over(nullptr, rows, {}); }
  /// Collective. Returns the queue of all ranks, equal on every rank.
  QueuedRows queued_rows(ProcessGroup& group, const CallOptions& options = {}) const {
    return rows_over(&group, options);
  }
  QueuedRows queued_rows() const { return rows_over(nullptr, {}); }  ///< Without a group.

  /// Collective. Returns the queue of all ranks, the number of calls and the temperature: the same
  /// bytes on every rank, so one rank may write them for all.
  std::string save(ProcessGroup& group, const CallOptions& options = {}) const;
  std::string save() const;  ///< One process, without a group.
  /// Restores a state of save(). Takes the same bytes on every rank; the number of ranks may differ
  /// from that of save(). Sends nothing.
  /// @throws Error invalid_argument for other bytes, and for a state of another loss, other classes
  ///         or another queue; the loss stays unchanged.
  void load(ProcessGroup& group, std::string_view state);
  void load(std::string_view state);  ///< One process, without a group.
  /// Collective: goes on over a group of other ranks. The queue keeps the rows that these ranks
  /// hold, in their order; those of lost ranks are gone, and new ranks bring none. Takes the
  /// temperature and the number of calls from rank 0. On the wire: the queue, to every rank.
  /// @throws Error, as load(), if options differ; then nothing has changed.
  void set_group(ProcessGroup& group, const CallOptions& options = {});

 protected:
  /// `name` is a literal; errors begin with it.
  RankingLoss(std::string_view name, std::int64_t classes, double temperature,
              std::int64_t ignore_index, const PoolOptions& pool);
  std::string_view name() const noexcept { return name_; }  ///< Errors begin with it.
  /// The rows of earlier calls.
  internal::losses::RowQueue& queue() const noexcept { return *queue_; }

 private:
  /// A null group is one process.
  virtual LossResult compute(ProcessGroup* group, const Batch& batch,
                             const CallOptions& options) = 0;
  std::string save_over(ProcessGroup* group, const CallOptions& options) const;
  void enqueue_over(ProcessGroup* group, const Batch& batch, const CallOptions& options);
  QueuedRows rows_over(ProcessGroup* group, const CallOptions& options) const;
  void load_as(int rank, int ranks, std::string_view state);

  std::string_view name_;
  std::int64_t classes_;
  double temperature_;
  std::int64_t ignore_index_;
  std::unique_ptr<internal::losses::RowQueue> queue_;
};

}  // namespace losses
}  // namespace tutti
