#include "internal/losses/global_batch.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <tutti/row_layout.hpp>

#include "internal/fail.hpp"
#include "internal/gather_arrays.hpp"
#include "internal/losses/elements.hpp"

namespace tutti::internal::losses {
namespace {

/// Rows are numbered in 32 bits.
constexpr std::int64_t most_rows = UINT32_MAX;

/// [N] and [N, 1] are rows of one class.
Shape matrix_shape(const Shape& shape) {
  return shape.ndim() == 1 ? Shape{shape.rows(), 1} : shape;
}

/// What is wrong with this rank's rows, before anybody sees them.
void check(const RankingBatch& batch, const BatchRules& rules) {
  const auto& logits = batch.logits;
  const auto shape = matrix_shape(logits.shape);
  with_type(logits.dtype, [](auto) {});
  if (shape.rows() > most_rows)
    failf(Errc::count_overflow, "{} rows; there may be {}", shape.rows(), most_rows);
  if (shape.ndim() != 2 || shape.dims()[1] != rules.classes)
    failf(Errc::invalid_argument, "logits are {}; they must be [N, {}]", to_string(logits.shape),
          rules.classes);
  const auto& targets = batch.targets;
  if (targets.dtype != DType::i64)
    failf(Errc::invalid_argument, "targets are {}; they must be i64", name_of(targets.dtype));
  if (targets.shape.rows() != shape.rows() || targets.shape.row_numel() != 1 ||
      targets.shape.ndim() > 2 || targets.shape.ndim() == 0)
    failf(Errc::invalid_argument, "targets are {}, logits {}; targets must be [{}]",
          to_string(targets.shape), to_string(logits.shape), shape.rows());
  check_elements("logits", logits);
  check_elements("targets", targets);
  const auto& iid = batch.iid;
  if (iid.data != nullptr || iid.shape.numel() != 0) {
    if ((iid.dtype != DType::boolean && iid.dtype != DType::u8) ||
        iid.shape.numel() != shape.rows() || iid.shape.rows() != shape.rows())
      failf(Errc::invalid_argument, "iid is {} {}, logits {}; it must be boolean or u8 [{}]",
            name_of(iid.dtype), to_string(iid.shape), to_string(logits.shape), shape.rows());
    check_elements("iid", iid);
  }
  const std::span classes(static_cast<const std::int64_t*>(targets.data),
                          static_cast<std::size_t>(shape.rows()));
  for (std::size_t i = 0; i < classes.size(); ++i)
    if (rules.classes > 1 && classes[i] != rules.ignore_index &&
        (classes[i] < 0 || classes[i] >= rules.classes))
      failf(Errc::invalid_argument,
            "targets[{}] is {}; there are classes 0 to {}, and {} to ignore", i, classes[i],
            rules.classes - 1, rules.ignore_index);
}

/// The kept rows of logits [N, C] by class: [C, kept].
std::vector<double> columns_of(const ConstTensorView& logits, std::size_t classes,
                               std::span<const std::uint32_t> kept) {
  std::vector<double> columns(classes * kept.size());
  with_type(logits.dtype, [&]<typename T>(T) {
    const auto* from = static_cast<const T*>(logits.data);
    for (std::size_t c = 0; c < classes; ++c)
      for (std::size_t i = 0; i < kept.size(); ++i)
        columns[c * kept.size() + i] = to_double(from[kept[i] * classes + c]);
  });
  return columns;
}

}  // namespace

void check_ranking_options(std::string_view loss, std::int64_t classes, double temperature,
                           Reduction reduction) {
  if (classes <= 0)
    failf(Errc::invalid_argument, "{}: classes is {}; there has to be one at least", loss, classes);
  if (!(temperature > 0) || !std::isfinite(temperature))
    failf(Errc::invalid_argument, "{}: temperature is {}; it must be above 0", loss, temperature);
  if (reduction == Reduction::mean_positive)
    failf(Errc::invalid_argument, "{}: mean_positive is a reduction of focal losses", loss);
}

double class_weight(Reduction reduction, std::span<const std::uint8_t> valid) noexcept {
  const auto count = std::ranges::count(valid, std::uint8_t{1});
  return reduction == Reduction::mean && count > 0 ? 1 / static_cast<double>(count) : 1;
}

std::vector<double> sums_over_ranks(ProcessGroup* group, std::string_view loss,
                                    std::string_view options, const std::optional<Error>& refused,
                                    std::span<const double> mine, const CallOptions& call) {
  if (group == nullptr || group->size() == 1) {
    if (refused) throw Error(refused->code(), refused->message(), {.operation = std::string(loss)});
    return {mine.begin(), mine.end()};
  }
  const auto width = std::ssize(mine);
  const ConstTensorView row(mine.data(), DType::f64, {1, width});
  const auto gathered = gather_arrays(
      *group, {.caller = loss, .arrays = {&row, 1}, .refused = refused, .agree = options},
      {.call = call});
  std::vector<double> sums(mine.size());
  const auto* all = static_cast<const double*>(gathered.data[0].data());
  for (int r = 0; r < group->size(); ++r)
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += *all++;
  return sums;
}

RankingRows::RankingRows(ProcessGroup* group, const RankingBatch& batch, const BatchRules& rules,
                         const CallOptions& call)
    : group_(group),
      call_(call),
      shape_(batch.logits.shape),
      dtype_(batch.logits.dtype),
      classes_(rules.classes) {
  call_.name = {};
}

Tensor RankingRows::gradient(std::span<const double> columns) const {
  Tensor grad(host_memory(), shape_, dtype_);
  if (grad.bytes() != 0) std::memset(grad.data(), 0, grad.bytes());
  const auto classes = static_cast<std::size_t>(classes_);
  with_type(dtype_, [&]<typename T>(T) {
    auto* out = static_cast<T*>(grad.data());
    for (std::size_t c = 0; c < classes; ++c)
      for (std::size_t i = 0; i < own_rows_.size(); ++i)
        out[own_rows_[i] * classes + c] = from_double<T>(columns[c * own_rows_.size() + i]);
  });
  return grad;
}

GlobalBatch::GlobalBatch(ProcessGroup* group, const RankingBatch& batch, const BatchRules& rules,
                         const CallOptions& call)
    : RankingRows(group, batch, rules, call) {
  std::optional<Error> refused;
  try {
    check(batch, rules);
  } catch (const Error& error) {
    refused = error;
  }
  if (refused && ranks() == 1)
    throw Error(refused->code(), refused->message(), {.operation = std::string(rules.loss)});
  const auto rows = shape_.rows();
  std::array<ConstTensorView, 2> arrays{
      ConstTensorView(batch.logits.data, dtype_, matrix_shape(shape_)),
      ConstTensorView(batch.targets.data, DType::i64, {rows})};
  GatheredArrays gathered;
  RowLayout layout = RowLayout::equal(1, rows);
  if (ranks() > 1) {
    gathered = gather_arrays(
        *group_,
        {.caller = rules.loss, .arrays = arrays, .refused = refused, .agree = rules.options},
        {.call = call});
    for (std::size_t i = 0; i < arrays.size(); ++i) arrays[i] = gathered.data[i];
    layout = gathered.layout;
  }

  if (layout.total() > most_rows)
    failf(Errc::count_overflow, "{}: {} rows; there may be {}", rules.loss, layout.total(),
          most_rows);
  const auto total = static_cast<std::size_t>(layout.total());
  const auto first = static_cast<std::size_t>(layout.offset(rank()));
  const std::span targets(static_cast<const std::int64_t*>(arrays[1].data), total);
  std::vector<std::uint32_t> kept;
  for (std::size_t i = 0; i < total; ++i) {
    if (targets[i] == rules.ignore_index) continue;
    if (i < first) ++first_own_;
    if (i >= first && i < first + static_cast<std::size_t>(rows))
      own_rows_.push_back(static_cast<std::uint32_t>(i - first));
    kept.push_back(static_cast<std::uint32_t>(i));
    targets_.push_back(targets[i]);
  }
  scores_ = columns_of(arrays[0], static_cast<std::size_t>(classes_), kept);
}

std::vector<std::uint8_t> GlobalBatch::positives(std::size_t class_index) const {
  std::vector<std::uint8_t> positive(rows());
  for (std::size_t i = 0; i < rows(); ++i) positive[i] = is_positive(i, class_index) ? 1 : 0;
  return positive;
}

std::vector<double> GlobalBatch::gather_shares(std::span<const double> mine, std::size_t width,
                                               std::span<const std::int64_t> counts) const {
  if (ranks() == 1) return {mine.begin(), mine.end()};
  const RowLayout layout(counts);
  const auto columns = static_cast<std::int64_t>(width);
  std::vector<double> all(static_cast<std::size_t>(layout.total()) * width);
  const ConstTensorView in(mine.data(), DType::f64, {layout[rank()], columns});
  const TensorView out(all.data(), DType::f64, {layout.total(), columns});
  group_->all_gather(in, out, layout, call_);
  return all;
}

LocalBatch::LocalBatch(ProcessGroup* group, const RankingBatch& batch, const BatchRules& rules,
                       const CallOptions& call)
    : RankingRows(group, batch, rules, call) {
  const auto classes = static_cast<std::size_t>(classes_);
  std::vector<double> counts(2 + 2 * classes);
  std::optional<Error> refused;
  try {
    check(batch, rules);
    const auto* iid = static_cast<const std::uint8_t*>(batch.iid.data);
    const auto* targets = static_cast<const std::int64_t*>(batch.targets.data);
    for (std::int64_t i = 0; i < shape_.rows(); ++i)
      if (targets[i] != rules.ignore_index) {
        own_rows_.push_back(static_cast<std::uint32_t>(i));
        targets_.push_back(targets[i]);
        if (iid != nullptr) iid_.push_back(iid[i]);
      }
    scores_ = columns_of(batch.logits, classes, own_rows_);
    counts[0] = static_cast<double>(rows());  // Exact: below 2^53.
    for (std::size_t c = 0; c < classes; ++c)
      for (std::size_t i = 0; i < rows(); ++i) {
        counts[1 + c] += is_positive(i, c) ? 1 : 0;
        counts[2 + classes + c] += is_positive(i, c) && is_iid(i) ? 1 : 0;
      }
    for (std::size_t i = 0; i < rows(); ++i) counts[1 + classes] += is_iid(i) ? 1 : 0;
  } catch (const Error& error) {
    refused = error;
  }
  if (refused) std::ranges::fill(counts, 0);
  const auto options = fmt::format("{}, logits {}", rules.options, name_of(dtype_));
  for (const double sum : sums_over_ranks(group, rules.loss, options, refused, counts, call))
    totals_.push_back(static_cast<std::int64_t>(sum));
}

void LocalBatch::add_up(std::span<std::int64_t> counts) const {
  if (ranks() > 1) group_->all_reduce(counts, ReduceOp::sum, call_);
}

void LocalBatch::add_up(std::span<double> sums) const {
  if (ranks() > 1) group_->all_reduce(sums, ReduceOp::sum, call_);
}

std::pair<std::vector<double>, std::size_t> LocalBatch::gather(std::span<const double> mine,
                                                               std::size_t width) const {
  if (ranks() == 1) return {{mine.begin(), mine.end()}, 0};
  const ConstTensorView rows(
      mine.data(), DType::f64,
      {static_cast<std::int64_t>(mine.size() / width), static_cast<std::int64_t>(width)});
  const auto all = all_gather_rows(*group_, rows, {.call = call_});
  const auto* from = static_cast<const double*>(all.data.data());
  return {{from, from + all.data.shape().numel()},
          static_cast<std::size_t>(all.layout.offset(rank()))};
}

}  // namespace tutti::internal::losses
