#pragma once

#include <concepts>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/process_group.hpp>

// Reductions of numbers, such as metrics and losses. docs/gathering.md.

namespace [[gnu::visibility("default")]] tutti {

/// Reduces a number of this rank over the ranks. The group may be on a device. An average of
/// integers is the sum, which wraps, divided by W and truncated toward zero (`options` are as if
/// with integer_avg).
double all_reduce_number(ProcessGroup& group, double value, ReduceOp op = ReduceOp::sum,
                         const CallOptions& options = {});
/// The same for an integer; a sum wraps modulo 2^64.
std::int64_t all_reduce_number(ProcessGroup& group, std::int64_t value, ReduceOp op = ReduceOp::sum,
                               const CallOptions& options = {});
/// The same for narrower integers, as std::int64_t.
template <std::signed_integral T>
std::int64_t all_reduce_number(ProcessGroup& group, T value, ReduceOp op = ReduceOp::sum,
                               const CallOptions& options = {}) {
  return all_reduce_number(group, std::int64_t{value}, op, options);
}

/// Returns sum over ranks of `sum` / sum over ranks of `count`: the mean over all rows, however the
/// rows are split. The mean of per-rank means would be wrong. One all_reduce of two doubles. No
/// rows: NaN.
double global_mean(ProcessGroup& group, double sum, double count, const CallOptions& options = {});

/// A loss, summed over `count` rows.
struct NamedLoss {
  std::string name;  ///< Any text; the same on every rank.
  double sum = 0;    ///< Over this rank's rows.
  double count = 0;  ///< This rank's number of rows; may be 0.
};
/// The global mean of each loss, in the given order; NaN without rows. The same bits on every rank.
/// Names and their order must be equal on all ranks; otherwise every rank gets Error mismatch with
/// the names, and the group stays usable. On the wire: names and numbers from each rank to each
/// peer, in one round up to 64 KiB.
std::vector<double> reduce_losses(ProcessGroup& group, std::span<const NamedLoss> losses,
                                  const CallOptions& options = {});

/// The loss of a training step with gradient accumulation: add() every micro-batch, reduce() once
/// per step. The result is the mean over all rows of all micro-batches of all ranks. Ranks may have
/// different numbers of micro-batches. A value type.
class LossAccumulator {
 public:
  /// Adds the `mean` over `rows` rows of this micro-batch. With 0 rows `mean` is not read and may
  /// be NaN. @throws Error invalid_argument for a negative number of rows.
  void add(std::string_view name, double mean, std::int64_t rows);
  /// Declares a loss for which this rank may have no micro-batch. Call it once per name.
  void expect(std::string_view name);
  /// Calls reduce_losses() on the losses sorted by name, which must be the same on every rank. Then
  /// resets expected losses to 0 rows and removes all others. After an error nothing has changed.
  std::vector<std::pair<std::string, double>> reduce(ProcessGroup& group,
                                                     const CallOptions& options = {});

 private:
  struct Sum {
    double sum = 0;
    double rows = 0;
    bool expected = false;
  };
  std::map<std::string, Sum, std::less<>> sums_;
};

}  // namespace tutti
