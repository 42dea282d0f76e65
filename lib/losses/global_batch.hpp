#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/losses/ranking_loss.hpp>
#include <tutti/row_layout.hpp>

#include "losses/row_queue.hpp"
#include "losses/staged.hpp"

// The rows of all ranks in one call. Besides it only over_ranks communicates in this folder.

namespace tutti::internal::losses {

using tutti::losses::GradScale;
using tutti::losses::RankingBatch;
using tutti::losses::Reduction;

struct BatchRules {
  std::string_view loss{};  ///< The name of the loss, for errors.
  std::string options{};    ///< What all ranks must have alike, in words.
  std::int64_t classes = 1;
  std::int64_t ignore_index = 0;
  bool needs_all = false;   ///< Every rank needs the rows of all.
  bool uses_iid = false;    ///< Otherwise all rows are.
  bool any_target = false;  ///< Targets outside of the classes are rows of none.
};

/// By what the loss of each valid class counts.
double class_weight(Reduction reduction, std::span<const std::uint8_t> valid) noexcept;

/// The pool of one call: rows that are not ignored, of this call and behind them of the queue, and
/// what of them was drawn if there are too many.
///
/// Either every rank has all of it, the same rows in the same order, because the loss needs that or
/// it is small; or every rank has its own rows, and sums over the ranks say the rest. Losses add up
/// over rows() and the ranks, and need not know which it is.
class GlobalBatch {
 public:
  /// Collective, unless the queue's options say that the caller has gathered.
  /// @throws Error: this rank's own mistake, or mismatch for that of another.
  GlobalBatch(ProcessGroup* group, const RankingBatch& batch, const BatchRules& rules,
              RowQueue& queue, const CallOptions& call);

  int rank() const noexcept { return group_ == nullptr ? 0 : group_->rank(); }
  int ranks() const noexcept { return group_ == nullptr ? 1 : group_->size(); }
  bool in_float() const noexcept { return dtype_ != DType::f64; }  ///< Scores are floats or less.

  std::size_t rows() const noexcept { return targets_.size(); }
  /// Of one class, by row.
  std::span<const double> scores(std::size_t class_index) const noexcept {
    return std::span(scores_).subspan(class_index * rows(), rows());
  }
  bool is_positive(std::size_t row, std::size_t class_index) const noexcept {
    return classes_ == 1 ? targets_[row] != 0
                         : targets_[row] == static_cast<std::int64_t>(class_index);
  }
  bool is_iid(std::size_t row) const noexcept { return iid_[row] != 0; }
  bool is_live(std::size_t row) const noexcept { return row < live_; }  ///< Not of the queue.
  /// 1 where a row is positive for the class.
  std::vector<std::uint8_t> positives(std::size_t class_index) const;

  /// Rows [first_own, first_own + own) are those of this rank in this call.
  std::size_t first_own() const noexcept { return first_own_; }
  std::size_t own() const noexcept { return own_rows_.size(); }
  bool is_own(std::size_t row) const noexcept { return row - first_own_ < own(); }
  /// The gradient [N_r, C] in the logits' dtype, of numbers [own(), C]; other rows get 0.
  /// Once, and nothing else afterwards but keep().
  Tensor gradient(std::span<const double> numbers);
  double scale_of(GradScale scale) const noexcept;

  /// Rows of all ranks: all of them, those that are iid, those of this call.
  struct Count {
    std::int64_t rows = 0, iid = 0, live = 0;
  };
  Count total() const noexcept;
  Count total_positive(std::size_t class_index) const noexcept {
    return counts_[classes_ == 1 ? 1 : class_index];
  }

  /// Collective unless every rank has all: sums over the ranks, in place.
  void add_up(const TensorView& numbers) const;
  /// Collective unless every rank has all: every rank's numbers [n, width] behind one another, and
  /// at which of them this rank's begin.
  std::pair<std::vector<double>, std::size_t> gather(std::vector<double> mine,
                                                     std::size_t width) const;
  /// Collective: every rank's share, one behind the other: mine is `counts[rank()]` items of
  /// `width` numbers.
  std::vector<double> gather_shares(std::span<const double> mine, std::size_t width,
                                    std::span<const std::int64_t> counts) const;

  /// Rows of this call on each rank, when every rank has all; they are rows() [0, their sum).
  std::span<const std::int64_t> own_of_ranks() const noexcept { return own_of_ranks_; }
  /// Collective: the ranks have computed `width` numbers for each of those rows, rank r for part r
  /// of RowLayout `parts`; every rank gets the numbers of its own rows.
  std::vector<double> return_to_owners(std::span<const double> mine, std::size_t width,
                                       const RowLayout& parts) const;

  /// The call has succeeded: the queue takes its rows.
  void keep() noexcept;

 private:
  /// Rows that are not ignored, those of this call first.
  struct Chosen {
    std::vector<std::uint32_t> rows;    // Where they are in the source.
    std::vector<std::int64_t> numbers;  // As the queue numbers them.
  };
  PoolRows collect(RankingBatch& batch, const BatchRules& rules);
  Chosen choose(const PoolRows& source, const BatchRules& rules);
  void count(const PoolRows& source, const Chosen& chosen, bool and_enqueued);
  void draw(const PoolRows& source, Chosen& chosen);
  void take(const PoolRows& source, const Chosen& chosen);
  void remember(const RankingBatch& batch, const BatchRules& rules);
  std::size_t kind_of(std::int64_t target) const noexcept;

  ProcessGroup* group_;  // Null: this rank has all.
  RowQueue& queue_;
  CallOptions call_;  // Without the name, which is only lent.
  Staged staged_;
  Shape shape_;
  DType dtype_;
  std::int64_t classes_;
  bool training_;
  bool has_all_ = true;
  std::vector<double> scores_;  // [C, rows]
  std::vector<std::int64_t> targets_;
  std::vector<std::uint8_t> iid_;
  std::size_t live_ = 0;
  std::size_t first_own_ = 0;
  std::vector<std::uint32_t> own_rows_;  // Which rows of the batch they are.
  std::vector<std::int64_t> own_of_ranks_;
  std::vector<Count> counts_;           // Of all ranks, by kind_of().
  std::vector<std::int64_t> enqueued_;  // Rows that every rank brings to the queue.
  RowQueue::Rows fresh_;                // Those of this rank; the last ones.
};

}  // namespace tutti::internal::losses
