#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/gather.hpp>
#include <tutti/process_group.hpp>
#include <tutti/value.hpp>

// Reductions of metrics and losses, as PyTorch Lightning and torchmetrics have them, with their
// corners settled (docs/gathering.md). No barrier is added: a collective is its own.

namespace [[gnu::visibility("default")]] tutti {

/// A reduction by enumerator or by name: "sum", "mean", "avg", "max", "min", "prod", "product" in
/// any case. @throws Error invalid_argument for another name, with those that there are.
struct SyncOp {
  ReduceOp op = ReduceOp::sum;
  SyncOp() noexcept = default;
  SyncOp(ReduceOp reduce) noexcept : op(reduce) {}
  SyncOp(std::string_view name);
  SyncOp(const char* name) : SyncOp(std::string_view(name)) {}
};

struct SyncOptions {
  /// Lightning before 2.2: "mean" returns a new array (floats; integers become f32) and leaves the
  /// sum in the input.
  bool legacy_out_of_place = false;
  CallOptions call{};
};

/// Reduces over the ranks in place. "mean" of integers truncates toward zero. A group of one rank
/// leaves everything as it is. Returns the array that holds the result: `data` itself, except
/// for legacy_out_of_place.
Value sync_ddp(const TensorView& data, ProcessGroup& group, const SyncOp& op = {},
               const SyncOptions& options = {});
double sync_ddp(double value, ProcessGroup& group, const SyncOp& op = {},
                const SyncOptions& options = {});
std::int64_t sync_ddp(std::int64_t value, ProcessGroup& group, const SyncOp& op = {},
                      const SyncOptions& options = {});

/// Null means that there is no group: everything is left as it is, and `op` is not looked at.
Value sync_ddp_if_available(const TensorView& data, ProcessGroup* group,
                            std::string_view op = "sum", const SyncOptions& options = {});
double sync_ddp_if_available(double value, ProcessGroup* group, std::string_view op = "sum",
                             const SyncOptions& options = {});

/// Arrays of equal shape [...] of all ranks: [W, ...], also for W = 1. Null: the input, [...].
Value all_gather_ddp_if_available(const ConstTensorView& data, ProcessGroup* group,
                                  const GatherOptions& options = {});

/// sum over ranks of `sum` / sum over ranks of `count`: the mean over all rows whatever their
/// split, where a mean of per-rank means is wrong. One all_reduce of two doubles. No rows: NaN.
double global_mean(double sum, double count, ProcessGroup& group, const CallOptions& options = {});

/// A scalar with the number of rows it is the sum over.
struct NamedLoss {
  std::string name;
  double sum = 0;
  double count = 0;
};
/// The global mean of each, in the order given, in one all_reduce. The names have to be the same
/// on every rank in the same order: otherwise Error mismatch on all, naming them.
std::vector<double> reduce_losses(std::span<const NamedLoss> losses, ProcessGroup& group,
                                  const CallOptions& options = {});

/// The loss of a training step with gradient accumulation: add() every micro-batch, reduce() once
/// per step. The result is the mean over all rows of all micro-batches of all ranks. A value type.
class LossAccumulator {
 public:
  /// `mean` over `rows` rows of this micro-batch; rows may be 0.
  void add(std::string_view name, double mean, std::int64_t rows);
  /// Reduces and clears. A rank without micro-batches adds nothing, but has to have the same names:
  /// expect() them.
  void expect(std::string_view name);
  std::vector<std::pair<std::string, double>> reduce(ProcessGroup& group,
                                                     const CallOptions& options = {});

 private:
  std::vector<NamedLoss> losses_;
};

}  // namespace tutti
