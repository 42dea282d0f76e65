#include "internal/losses/global_batch.hpp"

#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include <tutti/half.hpp>
#include <tutti/row_layout.hpp>

#include "internal/fail.hpp"
#include "internal/gather_arrays.hpp"

namespace tutti::internal::losses {
namespace {

/// Calls use(T{}) with the type of a dtype of logits.
template <typename Use>
void with_type(DType dtype, const Use& use) {
  switch (dtype) {
    case DType::f32:
      return use(float{});
    case DType::f64:
      return use(double{});
    case DType::f16:
      return use(Float16{});
    case DType::bf16:
      return use(BFloat16{});
    default:
      failf(Errc::invalid_argument, "logits are {}; they may be f32, f64, f16 and bf16",
            name_of(dtype));
  }
}

template <typename T>
double to_double(T value) {
  if constexpr (std::is_floating_point_v<T>)
    return value;
  else
    return static_cast<float>(value);
}

/// [N] and [N, 1] are rows of one class.
Shape matrix_shape(const Shape& shape) {
  return shape.ndim() == 1 ? Shape{shape.rows(), 1} : shape;
}

/// What is wrong with this rank's rows, before anybody sees them.
void check(const RankingBatch& batch, const BatchRules& rules) {
  const auto& logits = batch.logits;
  const auto shape = matrix_shape(logits.shape);
  with_type(logits.dtype, [](auto) {});
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
  for (const auto* array : {&logits, &targets}) {
    if (array->shape.numel() != 0 && array->data == nullptr)
      failf(Errc::invalid_argument, "{} are null", array == &logits ? "logits" : "targets");
    if (array->shape.numel() != 0 && array->device.type != DeviceType::cpu)
      failf(Errc::unsupported, "{} are on {}; losses work on host memory",
            array == &logits ? "logits" : "targets", to_string(array->device));
  }
  with_type(logits.dtype, [&]<typename T>(T) {
    const std::span values(static_cast<const T*>(logits.data),
                           static_cast<std::size_t>(logits.shape.numel()));
    for (std::size_t i = 0; i < values.size(); ++i)
      if (!std::isfinite(to_double(values[i])))
        failf(Errc::invalid_argument, "logits[{}, {}] is {}; logits must be finite",
              i / static_cast<std::size_t>(rules.classes),
              i % static_cast<std::size_t>(rules.classes), to_double(values[i]));
  });
  const std::span classes(static_cast<const std::int64_t*>(targets.data),
                          static_cast<std::size_t>(shape.rows()));
  for (std::size_t i = 0; i < classes.size(); ++i)
    if (rules.classes > 1 && classes[i] != rules.ignore_index &&
        (classes[i] < 0 || classes[i] >= rules.classes))
      failf(Errc::invalid_argument,
            "targets[{}] is {}; there are classes 0 to {}, and {} to ignore", i, classes[i],
            rules.classes - 1, rules.ignore_index);
}

}  // namespace

GlobalBatch::GlobalBatch(ProcessGroup* group, const RankingBatch& batch, const BatchRules& rules,
                         const CallOptions& call)
    : group_(group),
      call_(call),
      shape_(batch.logits.shape),
      dtype_(batch.logits.dtype),
      classes_(rules.classes) {
  call_.name = {};  // It is only lent.
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

  const auto total = static_cast<std::size_t>(layout.total());
  const auto first = static_cast<std::size_t>(layout.offset(rank()));
  const std::span targets(static_cast<const std::int64_t*>(arrays[1].data), total);
  std::vector<std::size_t> kept;
  for (std::size_t i = 0; i < total; ++i) {
    if (targets[i] == rules.ignore_index) continue;
    if (i < first) ++first_own_;
    if (i >= first && i < first + static_cast<std::size_t>(rows))
      own_rows_.push_back(static_cast<std::uint32_t>(i - first));
    kept.push_back(i);
    targets_.push_back(targets[i]);
  }
  const auto columns = static_cast<std::size_t>(classes_);
  scores_.resize(columns * kept.size());
  with_type(dtype_, [&]<typename T>(T) {
    const auto* logits = static_cast<const T*>(arrays[0].data);
    for (std::size_t c = 0; c < columns; ++c)
      for (std::size_t i = 0; i < kept.size(); ++i)
        scores_[c * kept.size() + i] = to_double(logits[kept[i] * columns + c]);
  });
}

std::vector<std::uint8_t> GlobalBatch::positives(std::int64_t class_index) const {
  std::vector<std::uint8_t> positive(rows());
  for (std::size_t i = 0; i < rows(); ++i)
    positive[i] = classes_ == 1 ? targets_[i] != 0 : targets_[i] == class_index;
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

Tensor GlobalBatch::gradient(std::span<const double> columns) const {
  Tensor grad(host_memory(), shape_, dtype_);
  if (grad.bytes() != 0) std::memset(grad.data(), 0, grad.bytes());
  const auto width = static_cast<std::size_t>(classes_);
  with_type(dtype_, [&]<typename T>(T) {
    auto* out = static_cast<T*>(grad.data());
    for (std::size_t c = 0; c < width; ++c)
      for (std::size_t i = 0; i < own_rows_.size(); ++i) {
        const double value = columns[c * own_rows_.size() + i];
        if constexpr (std::is_floating_point_v<T>)
          out[own_rows_[i] * width + c] = static_cast<T>(value);
        else
          out[own_rows_[i] * width + c] = T(static_cast<float>(value));
      }
  });
  return grad;
}

}  // namespace tutti::internal::losses
