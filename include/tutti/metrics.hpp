#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/process_group.hpp>
#include <tutti/tensor.hpp>

// Metrics of binary scores over the rows of all ranks, equal to those of one process that has all
// rows. Every rank gets the same bits, for every split of the rows over the ranks and every order
// of the rows. A rank may have no rows. docs/metrics.md has the definitions.
//
// The functions are collective: all ranks call the same one, with equal options. Errors are thrown
// on every rank, and the group stays usable. Arrays are in host memory.

namespace tutti {
/// Metrics of binary scores over the rows of all ranks.
namespace [[gnu::visibility("default")]] metrics {

/// The scored rows of this rank: add() every batch, then call a metric. Belongs to no group.
/// A value type, for one thread at a time.
class ScoredRows {
 public:
  /// `weighted`: every row has a weight. The same on all ranks.
  explicit ScoredRows(bool weighted = false) noexcept : weighted_(weighted) {}
  bool weighted() const noexcept { return weighted_; }  ///< As given to the constructor.

  /// Appends a batch. Each array is [n] or [n, 1].
  ///
  /// @param scores   f32, f64, f16 or bf16; may be infinite; -0 is 0.
  /// @param targets  0 or 1; i64, u8 or boolean.
  /// @param weights  as scores, but finite and not negative; {} unless weighted(). Rows of weight 0
  ///                 are left out.
  /// @throws Error invalid_argument for another shape or dtype; unsupported for an array on a
  ///         device. Nothing has changed then. An invalid element (a NaN, a target of 2) is no
  ///         error here, because the other ranks would wait for this one: the batch is left out,
  ///         and every metric is an Error on all ranks until reset().
  void add(const ConstTensorView& scores, const ConstTensorView& targets,
           const ConstTensorView& weights = {});
  /// Appends the rows of another object. @throws Error invalid_argument if only one is weighted().
  void merge(const ScoredRows& other);
  void reset() noexcept;  ///< Removes the rows, and invalid().

  /// Returns the rows, without those of other ranks. A state fits any rank of any number of ranks:
  /// merge() joins several. @throws Error invalid_argument after an invalid element.
  std::string save() const;
  /// Replaces the rows. @throws Error invalid_argument for bytes that are not from save(), or of an
  ///         object that differs in weighted(); nothing has changed then.
  void load(std::string_view state);

  /// A row of rows().
  struct Row {
    double score;   ///< May be infinite; -0 is 0.
    double weight;  ///< Negative if the target is 0; otherwise positive.
  };
  std::span<const Row> rows() const noexcept { return rows_; }  ///< Without rows of weight 0.
  /// The first invalid element, in words; empty if there was none.
  const std::string& invalid() const noexcept { return invalid_; }

 private:
  bool weighted_;
  std::vector<Row> rows_;
  std::int64_t batches_ = 0;
  std::string invalid_;
};

/// Further metrics of binary_metrics(), beside AUROC and average precision.
struct BinaryOptions {
  std::vector<double> precisions{};  ///< Each from 0 to 1.
  std::vector<double> quantiles{};   ///< Each from 0 to 1.
};

/// The result of binary_metrics(), the same on every rank.
struct BinaryMetrics {
  /// The area under the ROC curve: the probability that a positive row has a higher score than a
  /// negative one; a tie counts half. NaN without positive or without negative rows.
  double auroc = std::numeric_limits<double>::quiet_NaN();
  /// Sum over the different scores s, descending, of (recall(s) - recall before s) precision(s);
  /// rows are retrieved from s upwards. NaN without positive rows.
  double average_precision = std::numeric_limits<double>::quiet_NaN();
  /// For each of BinaryOptions::precisions: the largest recall of a threshold with this precision
  /// or more; 0 if there is none. NaN without positive rows.
  std::vector<double> recalls{};
  /// For each of BinaryOptions::quantiles: the quantile of the scores of all rows. NaN without
  /// rows. Unweighted: interpolated linearly between the scores at floor and ceil of q (n - 1).
  /// Weighted: the lowest score with a sum of weights, up to and including it, of q or more of the
  /// total.
  std::vector<double> quantiles{};
};

/// All metrics for one exchange of the rows, which is nearly their whole cost.
///
/// On the wire: 16 bytes for each different pair of score and target of a rank (weighted: for each
/// row). If no rank has more than 64 KiB, one message to every peer. Otherwise the rows are sorted
/// over the ranks: each row goes to one rank, which gets about 1 / W of all; beside it five small
/// exchanges. Unweighted rows of equal score and target travel as one; weighted rows of equal score
/// all go to one rank.
/// @throws Error invalid_argument for an invalid element, with the rank, and for an option out of
///         range; mismatch then on the other ranks, and if the options differ.
BinaryMetrics binary_metrics(ProcessGroup& group, const ScoredRows& rows,
                             const BinaryOptions& further = {}, const CallOptions& options = {});

/// BinaryMetrics::auroc, at the price of all.
double auroc(ProcessGroup& group, const ScoredRows& rows, const CallOptions& options = {});
/// BinaryMetrics::average_precision, at the price of all.
double average_precision(ProcessGroup& group, const ScoredRows& rows,
                         const CallOptions& options = {});
/// BinaryMetrics::recalls of one precision, 0 to 1, at the price of all.
double recall_at_precision(ProcessGroup& group, const ScoredRows& rows, double precision,
                           const CallOptions& options = {});
/// BinaryMetrics::quantiles for each of `q`, 0 to 1, at the price of all.
std::vector<double> quantiles(ProcessGroup& group, const ScoredRows& rows,
                              std::span<const double> q, const CallOptions& options = {});
/// The same of an array of any shape, without weights.
std::vector<double> quantiles(ProcessGroup& group, const ConstTensorView& values,
                              std::span<const double> q, const CallOptions& options = {});

}  // namespace metrics
}  // namespace tutti
