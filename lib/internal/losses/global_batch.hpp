#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/losses/loss.hpp>
#include <tutti/process_group.hpp>

// The loss layer's view of the other ranks. Nothing else in it communicates.

namespace tutti::internal::losses {

using tutti::losses::GradScale;
using tutti::losses::RankingBatch;
using tutti::losses::Reduction;

/// Collective: the sums over ranks of a few numbers, in the order of the ranks. `refused`: what is
/// wrong with this rank's call, if anything; then it is an error on every rank.
/// @throws Error also when the options, in words, are not those of the others.
std::vector<double> sums_over_ranks(ProcessGroup* group, std::string_view loss,
                                    std::string_view options, const std::optional<Error>& refused,
                                    std::span<const double> mine, const CallOptions& call);

inline double scale_of(GradScale scale, const ProcessGroup* group) noexcept {
  return scale == GradScale::for_mean_reducer && group != nullptr ? group->size() : 1.0;
}

/// @throws Error invalid_argument: classes, temperature, a reduction that is for focal losses.
void check_ranking_options(std::string_view loss, std::int64_t classes, double temperature,
                           Reduction reduction);

struct BatchRules {
  std::string_view loss{};  ///< The name of the loss, for errors.
  std::string options{};    ///< What all ranks must have alike, in words.
  std::int64_t classes = 1;
  std::int64_t ignore_index = 0;
};

/// By what the loss of each valid class counts.
double class_weight(Reduction reduction, std::span<const std::uint8_t> valid) noexcept;

/// What the two batches below share: rows that count, by class, and the way back to this rank's
/// logits.
class RankingRows {
 public:
  int rank() const noexcept { return group_ == nullptr ? 0 : group_->rank(); }
  int ranks() const noexcept { return group_ == nullptr ? 1 : group_->size(); }
  std::size_t rows() const noexcept { return targets_.size(); }
  /// Of one class, by row.
  std::span<const double> scores(std::size_t class_index) const noexcept {
    return std::span(scores_).subspan(class_index * rows(), rows());
  }
  bool is_positive(std::size_t row, std::size_t class_index) const noexcept {
    return classes_ == 1 ? targets_[row] != 0
                         : targets_[row] == static_cast<std::int64_t>(class_index);
  }
  /// Which rows of this rank's batch count.
  std::span<const std::uint32_t> own_rows() const noexcept { return own_rows_; }
  /// The gradient [N_r, C] in the logits' dtype: columns by class, by own_rows(); others are 0.
  Tensor gradient(std::span<const double> columns) const;
  double scale_of(GradScale scale) const noexcept { return losses::scale_of(scale, group_); }

 protected:
  RankingRows(ProcessGroup* group, const RankingBatch& batch, const BatchRules& rules,
              const CallOptions& call);

  ProcessGroup* group_;
  CallOptions call_;  // Without the name, which is only lent.
  Shape shape_;
  DType dtype_;
  std::int64_t classes_;
  std::vector<double> scores_;  // [C, rows]
  std::vector<std::int64_t> targets_;
  std::vector<std::uint32_t> own_rows_;
};

/// The rows of all ranks that count, in the order of the ranks; the same on every rank.
class GlobalBatch : public RankingRows {
 public:
  /// Collective. @throws Error: this rank's own mistake, or mismatch for that of another.
  GlobalBatch(ProcessGroup* group, const RankingBatch& batch, const BatchRules& rules,
              const CallOptions& call);

  /// 1 where a row is positive for the class.
  std::vector<std::uint8_t> positives(std::size_t class_index) const;
  /// This rank's rows are [first_own, first_own + own_rows().size()).
  std::size_t first_own() const noexcept { return first_own_; }

  /// Every rank's share, one behind the other: mine is `counts[rank()]` items of `width` numbers.
  std::vector<double> gather_shares(std::span<const double> mine, std::size_t width,
                                    std::span<const std::int64_t> counts) const;

 private:
  std::size_t first_own_ = 0;
};

/// The rows of this rank that count, for losses that need only sums over the others; and how many
/// there are on all ranks together.
class LocalBatch : public RankingRows {
 public:
  /// Collective, as GlobalBatch.
  LocalBatch(ProcessGroup* group, const RankingBatch& batch, const BatchRules& rules,
             const CallOptions& call);

  std::int64_t total() const noexcept { return totals_[0]; }
  std::int64_t total_positive(std::size_t class_index) const noexcept {
    return totals_[1 + class_index];
  }
  bool is_iid(std::size_t row) const noexcept { return iid_.empty() || iid_[row] != 0; }
  /// Rows of all ranks that are iid, and those of them that are positive for a class.
  std::int64_t total_iid() const noexcept {
    return totals_[1 + static_cast<std::size_t>(classes_)];
  }
  std::int64_t total_iid_positive(std::size_t class_index) const noexcept {
    return totals_[2 + static_cast<std::size_t>(classes_) + class_index];
  }
  bool in_float() const noexcept { return dtype_ != DType::f64; }  ///< Scores are floats or less.

  /// Collective: sums over the ranks, in place.
  void add_up(std::span<std::int64_t> counts) const;
  void add_up(std::span<double> sums) const;
  /// Collective: every rank's numbers [n, width] behind one another, and where this rank's begin.
  std::pair<std::vector<double>, std::size_t> gather(std::span<const double> mine,
                                                     std::size_t width) const;

 private:
  std::vector<std::uint8_t> iid_;     // Empty: all are.
  std::vector<std::int64_t> totals_;  // Rows, positives of each class; the same of iid rows.
};

}  // namespace tutti::internal::losses
