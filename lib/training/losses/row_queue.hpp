#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/losses/ranking_loss.hpp>

namespace tutti::internal::losses {

/// Keeps the last rows of all ranks between the calls of a ranking loss. Each rank stores its own
/// rows, and only the numbers of the other ranks' rows.
///
/// Rows are numbered in the order of their arrival, over all ranks and calls. A row therefore has
/// the same number however the rows are split between ranks.
class RowQueue {
 public:
  struct Rows {
    std::vector<double> scores{};  ///< [n, C]
    std::vector<std::int64_t> targets{};
    std::vector<std::uint8_t> iid{};
    std::vector<double> weights{};
    std::size_t size() const noexcept { return targets.size(); }
    /// Appends rows [first, last) of `from`, which have `classes` scores each.
    void append(const Rows& from, std::int64_t first, std::int64_t last, std::int64_t classes);
  };
  /// The queued rows of one rank from one call. They have the numbers [first, first + count).
  struct Segment {
    std::int64_t first = 0;
    std::int64_t count = 0;
    int rank = 0;
    bool weighted = false;  ///< The call had weights, or the rows were loaded with some.
  };

  RowQueue(std::int64_t classes, const tutti::losses::PoolOptions& options) noexcept
      : classes_(classes), options_(options) {}

  const tutti::losses::PoolOptions& options() const noexcept { return options_; }
  std::int64_t classes() const noexcept { return classes_; }
  /// Calls in training. Counted only with max_rows.
  std::int64_t calls() const noexcept { return calls_; }
  /// Number of the next row; 0 without a queue.
  std::int64_t next() const noexcept { return next_; }
  std::int64_t size() const noexcept;  ///< Rows of all ranks.
  std::int64_t size_of(int rank) const noexcept;
  std::span<const Segment> segments() const noexcept { return segments_; }
  /// True if a row of any rank may have a weight other than 1. Equal on every rank.
  bool weighted() const noexcept;
  const Rows& own() const noexcept { return own_; }  ///< Sorted by number.

  /// Returns the state that all ranks must share, in words. Empty if results do not depend on it.
  std::string state() const;
  /// @throws Error invalid_argument if the stored rows belong to another rank or world size.
  void check_world(int rank, int ranks) const;

  /// Returns the last rows of a batch in host memory, as many as the queue can hold. Leaves out
  /// ignored rows.
  Rows newest(const tutti::losses::Batch& batch, std::int64_t ignore_index) const;
  /// Allocates memory, so that enqueue() cannot fail.
  void reserve(std::size_t rows, int ranks);
  /// Counts a call in training.
  void count_call() noexcept { calls_ += options_.max_rows != 0 ? 1 : 0; }
  /// Adds the rows of a call: counts[r] rows of rank r. `mine`: newest() of this rank's batch.
  /// `weighted`: the batches of all ranks have weights.
  void enqueue(int rank, std::span<const std::int64_t> counts, const Rows& mine,
               bool weighted) noexcept;
  void reset() noexcept;  ///< Empties the queue. calls() stays, so that samples differ.

  /// Returns the saved state. `all` are the rows of every rank, ordered by number.
  std::string save(const Rows& all, double temperature) const;
  /// Restores `state` for `rank` of `ranks` ranks. Returns the temperature.
  /// @throws Error invalid_argument; nothing has changed then.
  double load(std::string_view state, int rank, int ranks);
  /// Returns this rank's rows with their numbers.
  std::string save_own(double temperature) const;
  /// Returns the saved state of a queue with the rows of `parts`, which are those of save_own(),
  /// in the order of their numbers. The temperature and the calls are those of the first part.
  std::string merge(std::span<const std::string> parts) const;

 private:
  std::int64_t classes_;
  tutti::losses::PoolOptions options_;
  std::int64_t calls_ = 0;
  std::int64_t next_ = 0;
  std::uint64_t history_ = 0;  // Hash of the loaded state and all row counts since then.
  // The rank, and in ranks_ the world size, of the last enqueue() or load().
  int rank_ = 0;
  int ranks_ = 1;
  std::vector<Segment> segments_;
  Rows own_;
};

/// Views the rows of a call and of the queue, those of one rank or those of all ranks. Ignored rows
/// are included.
class PoolRows {
 public:
  /// The rows of one rank: those of this call start at `live`, its part of the queue at `queued`.
  struct Block {
    int rank = 0;
    std::size_t live = 0, queued = 0;
  };
  ConstTensorView logits{nullptr, DType::f64, Shape::vector(0)};  ///< [rows, C]
  ConstTensorView targets{nullptr, DType::i64, Shape::vector(0)};
  std::optional<ConstTensorView> iid{};      ///< Not set: all rows are independent.
  std::optional<ConstTensorView> weights{};  ///< f64. Not set: 1.
  std::vector<Block> blocks{};

  std::size_t rows() const { return static_cast<std::size_t>(logits.shape.rows()); }
  std::int64_t target(std::size_t row) const {
    return static_cast<const std::int64_t*>(targets.data)[row];
  }
  bool is_iid(std::size_t row) const {
    return !iid || static_cast<const std::uint8_t*>(iid->data)[row] != 0;
  }
  double weight(std::size_t row) const {
    return weights ? static_cast<const double*>(weights->data)[row] : 1;
  }
  /// Returns the views that are set, in the order of their declaration.
  std::vector<ConstTensorView> arrays() const;
  /// Keeps these arrays, which replace arrays(), and views them from now on.
  void hold(std::vector<Tensor>&& arrays);
  /// Keeps the weights of the rows and views them.
  void hold_weights(std::vector<double>&& weights);
  /// Copies the viewed rows and then `queued` into one array for each of arrays(), and views the
  /// copies. A null iid has 1 for each row. @throws Error invalid_argument if a queued score does
  /// not fit in the logits' dtype.
  void join(const RowQueue::Rows& queued, std::int64_t classes);

 private:
  std::vector<std::uint8_t> joined(const ConstTensorView& flags,
                                   std::span<const std::uint8_t> queued) const;

  std::vector<Tensor> arrays_;
  std::vector<std::byte> logit_copy_;
  std::vector<std::int64_t> target_copy_;
  std::vector<std::uint8_t> iid_copy_;
  std::vector<double> weight_copy_;
};

}  // namespace tutti::internal::losses
