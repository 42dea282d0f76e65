#include <tutti/sync.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include <fmt/format.h>

#include "group/call.hpp"
#include "group/core.hpp"
#include "group/validate.hpp"
#include "kernels/gradients.hpp"
#include "kernels/reduce.hpp"
#include "kernels/reduce_types.hpp"
#include "kernels/reproducible.hpp"
#include "rows/gather_arrays.hpp"
#include "rows/row_views.hpp"
#include "values/bytes.hpp"
#include "values/fail.hpp"

namespace [[gnu::visibility("default")]] tutti {
namespace {

/// True if the group's device cannot reduce these numbers, so that the host must gather and combine
/// them. False for an unknown operation, which the call refuses.
bool is_combined_on_host(ProcessGroup& group, DType dtype, const ReduceOp& op, bool order_fixed) {
  return !internal::on_host(group) && internal::can_reduce(dtype, op.kind) &&
         (order_fixed || !group.supports(Operation::all_reduce, dtype, op));
}

/// Reduces numbers in host memory over all ranks. Gathers and combines them here if the group's
/// device cannot reduce them.
void reduce_on_host(ProcessGroup& group, const TensorView& data, ReduceOp op,
                    const CallOptions& options) try {
  bool reproducible = false;
  const auto why = internal::refusal_of([&] {
    const auto& bounds = internal::Core::of(group).bounds();
    reproducible = internal::sums_reproducibly(data.dtype, op.kind, bounds, options);
  });
  if (why || !is_combined_on_host(group, data.dtype, op, options.order_fixed || reproducible))
    return internal::host_call(
        group, {.kind = Operation::all_reduce, .in = data, .out = data, .reduce = op}, options);
  const auto ranks = static_cast<std::size_t>(group.size());
  const auto n = data.shape.numel();
  std::vector<std::byte> all(ranks * data.bytes());
  const TensorView whole(all.data(), data.dtype, {n * group.size()});
  const auto own = internal::rows_of(whole, n * group.rank(), n);
  std::memcpy(own.data, data.data, data.bytes());
  if (op.kind == ReduceOp::Kind::premul_sum) {
    internal::scale(data.dtype, own.data, static_cast<std::size_t>(n), op.scale);
    op = ReduceOp::sum;
  }
  internal::host_call(group, {.kind = Operation::all_gather, .in = own, .out = whole, .rows = n},
                      options);
  std::vector<const void*> parts;
  for (std::size_t r = 0; r < ranks; ++r) parts.push_back(all.data() + r * data.bytes());
  const auto fold = reproducible ? internal::fold_reproducible : internal::fold;
  fold(data.dtype, op.kind, data.data, parts, {}, static_cast<std::size_t>(n));
} catch (...) {
  internal::end_calls(group);
}

/// Reduces one number over all ranks.
template <typename T>
T reduce_number(ProcessGroup& group, T value, ReduceOp op, CallOptions options) {
  options.integer_avg = true;
  reduce_on_host(group, TensorView(std::span(&value, 1)), op, options);
  return value;
}

double mean_of(double sum, double count) {
  return count == 0 ? std::numeric_limits<double>::quiet_NaN() : sum / count;
}

std::string encode(std::span<const NamedLoss> losses) {
  internal::Writer out;
  for (const auto& loss : losses) out.text(loss.name).f64(loss.sum).f64(loss.count);
  return std::string(out.view());
}

std::vector<NamedLoss> decode(std::string_view message) {
  internal::Reader in(message, Errc::mismatch, "the message of a rank's losses");
  std::vector<NamedLoss> losses;
  while (in.left() != 0) {
    auto& loss = losses.emplace_back();
    loss.name = in.text();
    loss.sum = in.f64();
    loss.count = in.f64();
  }
  return losses;
}

/// Lists the names: "2 losses: 'a', 'b'".
std::string describe(std::span<const NamedLoss> losses) {
  std::string text = fmt::format("{} losses", losses.size());
  std::string_view before = ": ";
  for (const auto& loss : losses) {
    text += fmt::format("{}'{}'", before, loss.name);
    before = ", ";
  }
  return text;
}

}  // namespace

double all_reduce_number(ProcessGroup& group, double value, ReduceOp op,
                         const CallOptions& options) {
  return reduce_number(group, value, op, options);
}

std::int64_t all_reduce_number(ProcessGroup& group, std::int64_t value, ReduceOp op,
                               const CallOptions& options) {
  return reduce_number(group, value, op, options);
}

double global_mean(ProcessGroup& group, double sum, double count, const CallOptions& options) {
  std::array both{sum, count};
  const TensorView data(both);
  internal::host_call(group, {.kind = Operation::all_reduce, .in = data, .out = data}, options);
  return mean_of(both[0], both[1]);
}

// Gathers the losses instead of reducing them. In an all_reduce, ranks with other losses would add
// unrelated numbers or wait for numbers that are never sent. A gather of so few bytes is as fast;
// all ranks then know all names and add in the same order.
std::vector<double> reduce_losses(ProcessGroup& group, std::span<const NamedLoss> losses,
                                  const CallOptions& options) try {
  const auto messages = all_gather_bytes(group, encode(losses), options);
  auto sums = decode(messages[0]);
  for (int r = 1; r < group.size(); ++r) {
    const auto theirs = decode(messages[static_cast<std::size_t>(r)]);
    if (!std::ranges::equal(sums, theirs, {}, &NamedLoss::name, &NamedLoss::name))
      throw internal::gather_error(
          Errc::mismatch, group, "reduce_losses", -1,
          fmt::format("rank 0 has {}; rank {} has {}; every rank has to pass the same losses",
                      describe(sums), r, describe(theirs)));
    for (std::size_t i = 0; i < sums.size(); ++i) {
      sums[i].sum += theirs[i].sum;
      sums[i].count += theirs[i].count;
    }
  }
  std::vector<double> means;
  for (const auto& loss : sums) means.push_back(mean_of(loss.sum, loss.count));
  return means;
} catch (...) {
  internal::end_calls(group);
}

void LossAccumulator::add(std::string_view name, double mean, std::int64_t rows) try {
  if (rows < 0)
    internal::failf(Errc::invalid_argument, "loss '{}' has {} rows; the number must be 0 or more",
                    name, rows);
  auto& loss = sums_[std::string(name)];
  if (rows == 0) return;
  loss.sum += mean * static_cast<double>(rows);
  loss.rows += static_cast<double>(rows);
} catch (...) {
  internal::end_calls(nullptr);
}

void LossAccumulator::expect(std::string_view name) try {
  sums_[std::string(name)].expected = true;
} catch (...) {
  internal::end_calls(nullptr);
}

std::vector<std::pair<std::string, double>> LossAccumulator::reduce(
    ProcessGroup& group, const CallOptions& options) try {
  std::vector<NamedLoss> losses;
  for (const auto& [name, loss] : sums_) losses.push_back({name, loss.sum, loss.rows});
  const auto means = reduce_losses(group, losses, options);
  std::vector<std::pair<std::string, double>> result;
  for (std::size_t i = 0; i < losses.size(); ++i) result.emplace_back(losses[i].name, means[i]);
  std::erase_if(sums_, [](const auto& entry) { return !entry.second.expected; });
  for (auto& [name, loss] : sums_) loss = {.expected = true};
  return result;
} catch (...) {
  internal::end_calls(group);
}

}  // namespace tutti
