#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/losses/ranking_loss.hpp>
#include <tutti/row_layout.hpp>

#include "losses/options.hpp"
#include "losses/row_queue.hpp"
#include "losses/staged.hpp"

// The rows of all ranks in one call. In this folder, only this file and over_ranks communicate.

namespace tutti::internal::losses {

using tutti::losses::Batch;
using tutti::losses::ClassStatus;
using tutti::losses::LossResult;
using tutti::losses::PoolOptions;
using tutti::losses::Reduction;

struct BatchRules {
  std::string_view loss{};  ///< The name of the loss, for errors.
  std::string options{};    ///< The options in words, for comparison between ranks.
  std::int64_t classes = 1;
  std::int64_t ignore_index = 0;
  bool needs_all = false;  ///< Every rank needs all rows.
  bool uses_iid = false;   ///< false: all rows are independent.
};

/// Checks this rank's rows, in host memory, before communicating. @throws Error.
void check_batch(const Batch& batch, const BatchRules& rules, const PoolOptions& pool);

/// Returns a result in which every class is valid and its loss is NaN.
LossResult start_result(std::int64_t classes);
inline bool is_valid(const LossResult& result, std::size_t class_index) noexcept {
  return result.status[class_index] == ClassStatus::valid;
}

/// Returns the weight of each valid class in the loss.
double class_weight(Reduction reduction, const LossResult& result) noexcept;

/// The pool of one call: the rows of this call that are not ignored, then those of the queue. A
/// pool of more than max_rows rows is sampled.
///
/// Every rank has all rows in the same order if the loss needs all rows or they are few. Otherwise
/// each rank has its own rows. A loss sums over rows() and then calls add_up(), which works in both
/// cases.
class GlobalBatch {
 public:
  /// Collective if PoolOptions::gather is set. A null group means a single process. @throws Error
  /// invalid_argument or unsupported if this rank's batch is invalid; mismatch if another rank's
  /// batch is, or if the options or queues of the ranks differ; count_overflow for more than
  /// INT32_MAX rows.
  static GlobalBatch collect(ProcessGroup* group, const Batch& batch, const BatchRules& rules,
                             RowQueue& queue, const CallOptions& options);

  int rank() const { return group_ == nullptr ? 0 : group_->rank(); }
  int ranks() const { return group_ == nullptr ? 1 : group_->size(); }
  bool in_float() const noexcept { return dtype_ != DType::f64; }  ///< Scores fit in float.

  std::size_t rows() const noexcept { return targets_.size(); }
  /// Returns the scores of one class, by row.
  std::span<const double> scores(std::size_t class_index) const noexcept {
    return std::span(scores_).subspan(class_index * rows(), rows());
  }
  bool is_positive(std::size_t row, std::size_t class_index) const noexcept {
    return classes_ == 1 ? targets_[row] != 0
                         : targets_[row] == static_cast<std::int64_t>(class_index);
  }
  bool is_iid(std::size_t row) const noexcept { return iid_[row] != 0; }
  bool is_live(std::size_t row) const noexcept { return row < live_; }  ///< Not of a queue.
  /// True if this call or the queue has weights. Equal on every rank.
  bool weighted() const noexcept { return weighted_; }
  double weight(std::size_t row) const noexcept { return weighted_ ? weights_[row] : 1; }
  /// Returns one number per row: 1 if the row is positive for the class, otherwise 0.
  std::vector<std::uint8_t> positives(std::size_t class_index) const;

  /// Returns the index of this rank's first row of this call. The own() rows start there.
  std::size_t first_own() const noexcept { return first_own_; }
  std::size_t own() const noexcept { return own_rows_.size(); }
  bool is_own(std::size_t row) const noexcept { return row - first_own_ < own(); }
  /// Returns the gradient [N_r, C] in the logits' dtype, from numbers [own(), C]. Other rows get 0.
  /// Call it once; only commit() may follow.
  Tensor gradient(std::span<const double> numbers);
  double scale_of(GradScale scale) const { return losses::scale_of(scale, group_); }

  /// Counts over all ranks: all rows, independent rows, rows of this call.
  struct Count {
    std::int64_t rows = 0, iid = 0, live = 0;
  };
  Count total() const noexcept;
  Count total_positive(std::size_t class_index) const noexcept {
    return counts_[classes_ == 1 ? 1 : class_index];
  }
  /// Sums of the weights of positive rows over all ranks; without weights, their numbers.
  struct Mass {
    double rows = 0, live = 0;
  };
  Mass positive_mass(std::size_t class_index) const noexcept {
    return masses_[classes_ == 1 ? 1 : class_index];
  }

  /// Sums numbers over the ranks, in place. Collective, unless every rank has all rows: then it
  /// does nothing.
  void add_up(const TensorView& numbers) const;
  /// Returns the numbers [n, width] of all ranks in rank order, and the index of this rank's first
  /// row of numbers. Collective unless every rank has all rows.
  std::pair<std::vector<double>, std::size_t> gather(std::vector<double> mine,
                                                     std::size_t width) const;
  /// Collective. Returns the shares of all ranks in rank order. `mine`, this rank's share, has
  /// counts[rank()] items of `width` numbers. @throws Error mismatch on all ranks if a shared pool
  /// is not the same on all.
  std::vector<double> gather_shares(std::span<const double> mine, std::size_t width,
                                    std::span<const std::int64_t> counts) const;

  /// Returns the number of rows of this call per rank. Requires that every rank has all rows; the
  /// rows of this call are then the first ones, ordered by rank.
  std::span<const std::int64_t> own_of_ranks() const noexcept { return own_of_ranks_; }
  /// Collective. Each rank passes `width` numbers for each row in its part of RowLayout `parts`,
  /// and receives the numbers of its own rows.
  std::vector<double> return_to_owners(std::span<const double> mine, std::size_t width,
                                       const RowLayout& parts) const;

  /// Adds the rows of this call to the queue, once the loss has succeeded.
  void commit() noexcept;

 private:
  /// The rows that are not ignored, rows of this call first.
  struct Chosen {
    std::vector<std::uint32_t> rows;    // Indices in the PoolRows.
    std::vector<std::int64_t> numbers;  // Their numbers in the RowQueue.
  };
  GlobalBatch(ProcessGroup* group, const Batch& batch, const BatchRules& rules, RowQueue& queue,
              const CallOptions& options);
  PoolRows gather_rows(Batch& batch, const BatchRules& rules);
  Chosen choose(const PoolRows& source, const BatchRules& rules);
  void count(const PoolRows& source, const Chosen& chosen, bool and_enqueued);
  void draw(const PoolRows& source, Chosen& chosen);
  void take(const PoolRows& source, const Chosen& chosen);
  void weigh(std::string_view loss);
  void remember(const Batch& batch, const BatchRules& rules);
  std::size_t kind_of(std::int64_t target) const noexcept;
  double hash_of_pool() const;

  bool shared_;          // Batch::pool_rows is set: every rank has all rows.
  ProcessGroup* group_;  // Null: this rank has all rows and computes alone.
  RowQueue& queue_;
  CallOptions options_;  // Without `name`, whose memory the caller owns.
  Staged staged_;
  Shape shape_;
  DType dtype_;
  std::int64_t classes_;
  bool training_;
  bool given_;     // This call has weights.
  bool weighted_;  // It or the queue has.
  bool has_all_ = true;
  std::vector<double> scores_;  // [C, rows]
  std::vector<std::int64_t> targets_;
  std::vector<std::uint8_t> iid_;
  std::vector<double> weights_;  // Empty without weights.
  std::size_t live_ = 0;
  std::size_t first_own_ = 0;
  std::vector<std::uint32_t> own_rows_;  // Indices of own rows in the batch.
  std::vector<std::int64_t> own_of_ranks_;
  std::vector<Count> counts_;           // Counts over all ranks, by kind_of().
  std::vector<Mass> masses_;            // The same of weights.
  std::vector<std::int64_t> enqueued_;  // Rows that each rank adds to the queue.
  RowQueue::Rows fresh_;                // This rank's newest rows.
};

}  // namespace tutti::internal::losses
