#pragma once

#include <concepts>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <tutti/gather.hpp>
#include <tutti/maybe_owned.hpp>
#include <tutti/process_group.hpp>

// Reductions of metrics and losses, with functions like those of PyTorch Lightning and
// torchmetrics; docs/gathering.md has the edge cases. No barrier is added.

namespace [[gnu::visibility("default")]] tutti {

/// A reduction by enumerator, or by name in any case: "sum", "mean", "avg", "max", "min", "prod",
/// "product". Default-made or from a null pointer: sum. The call that uses it looks up the name, so
/// an unknown name is an error on every rank. A value type.
class SyncOp {
 public:
  SyncOp() noexcept = default;
  SyncOp(ReduceOp op) noexcept : op_(op) {}
  SyncOp(std::string_view name) : name_(name) {}
  SyncOp(const std::string& name) : name_(name) {}
  SyncOp(const char* name);
  /// @throws Error invalid_argument for an unknown name; its text lists the valid names.
  ReduceOp reduce() const;

 private:
  ReduceOp op_ = ReduceOp::sum;
  std::optional<std::string> name_;
};

/// Reduces over the ranks in place. "mean" of integers is the sum, which wraps, divided by W and
/// truncated toward zero (`options` are as if with integer_avg). Returns `data`. @throws Error
/// not_initialized when `group` is null.
MaybeOwned sync_ddp(const TensorView& data, ProcessGroup* group, const SyncOp& op = {},
                    const CallOptions& options = {});
double sync_ddp(double value, ProcessGroup* group, const SyncOp& op = {},
                const CallOptions& options = {});
std::int64_t sync_ddp(std::int64_t value, ProcessGroup* group, const SyncOp& op = {},
                      const CallOptions& options = {});
template <std::signed_integral T>
std::int64_t sync_ddp(T value, ProcessGroup* group, const SyncOp& op = {},
                      const CallOptions& options = {}) {
  return sync_ddp(std::int64_t{value}, group, op, options);
}

/// sync_ddp() that allows a null group: then the value is unchanged and `op` is ignored.
MaybeOwned sync_ddp_if_available(const TensorView& data, ProcessGroup* group, const SyncOp& op = {},
                                 const CallOptions& options = {});
template <typename T>
requires std::is_arithmetic_v<T>
auto sync_ddp_if_available(T value, ProcessGroup* group, const SyncOp& op = {},
                           const CallOptions& options = {}) {
  return group == nullptr ? value : sync_ddp(value, group, op, options);
}

/// Stacks the arrays [...] of all ranks to [W, ...]. A null group gives the input itself, [...].
/// The shapes are compared as in all_gather_rows(). With `rows`, which must be
/// RowLayout::equal(W, 1), they are not exchanged.
MaybeOwned all_gather_ddp_if_available(const ConstTensorView& data, ProcessGroup* group,
                                       const RowLayout& rows = {}, const CallOptions& options = {});

/// Returns sum over ranks of `sum` / sum over ranks of `count`: the mean over all rows, however the
/// rows are split. The mean of per-rank means would be wrong. One all_reduce of two doubles. No
/// rows: NaN.
double global_mean(ProcessGroup& group, double sum, double count, const CallOptions& options = {});

/// A loss, summed over `count` rows.
struct NamedLoss {
  std::string name;
  double sum = 0;
  double count = 0;
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
