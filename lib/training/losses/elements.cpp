#include "losses/elements.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include <fmt/format.h>

namespace tutti::internal::losses {

void check_elements(std::string_view what, const ConstTensorView& array) {
  const auto count = array.shape.numel();
  if (count == 0) return;
  if (array.data == nullptr) failf(Errc::invalid_argument, "{} are null", what);
  if (array.device.type != DeviceType::cpu)
    failf(Errc::unsupported, "{} are on {}; losses work on host memory", what,
          to_string(array.device));
  if (!is_float(array.dtype)) return;
  with_type(array.dtype, [&]<typename T>(T) {
    const auto* values = static_cast<const T*>(array.data);
    for (std::int64_t i = 0; i < count; ++i) {
      const double value = to_double(values[i]);
      if (std::isfinite(value)) continue;
      // The element's index in every dimension: "3, 0".
      std::string index;
      auto left = i;
      for (std::size_t d = array.shape.ndim(); d-- > 0; left /= array.shape.dims()[d])
        index =
            fmt::format("{}{}{}", left % array.shape.dims()[d], index.empty() ? "" : ", ", index);
      failf(Errc::invalid_argument, "{}[{}] is {}; {} must be finite", what, index, value, what);
    }
  });
}

std::vector<double> check_weights(const ConstTensorView& weights) {
  if (!has_gradient(weights.dtype))
    failf(Errc::invalid_argument, "weights are {}; they must be f16, bf16, f32 or f64",
          name_of(weights.dtype));
  check_elements("weights", weights);
  auto values = to_doubles(weights);
  const auto bad = std::ranges::find_if(values, [](double weight) { return weight < 0; });
  if (bad != values.end())
    failf(Errc::invalid_argument, "weights[{}] is {}; weights must be 0 or more",
          bad - values.begin(), *bad);
  return values;
}

std::span<const std::int64_t> check_rows(const ConstTensorView& logits,
                                         const ConstTensorView& targets, std::int64_t classes,
                                         std::int64_t ignore_index, bool any_target) {
  with_type(logits.dtype, [](auto) {});
  const bool vector = classes == 1 && logits.shape.ndim() == 1;
  if (!vector && (logits.shape.ndim() != 2 || logits.shape.dims()[1] != classes))
    failf(Errc::invalid_argument, "logits are {}; they must be [N, {}]", to_string(logits.shape),
          classes);
  const auto rows = logits.shape.rows();
  if (targets.dtype != DType::i64 || targets.shape.ndim() < 1 || targets.shape.ndim() > 2 ||
      targets.shape.row_numel() != 1 || targets.shape.rows() != rows)
    failf(Errc::invalid_argument, "targets are {} {}, logits {}; targets must be i64 [{}]",
          name_of(targets.dtype), to_string(targets.shape), to_string(logits.shape), rows);
  check_elements("targets", targets);
  check_elements("logits", logits);
  const std::span all(static_cast<const std::int64_t*>(targets.data),
                      static_cast<std::size_t>(rows));
  const auto last = std::max<std::int64_t>(classes - 1, 1);
  for (std::size_t i = 0; !any_target && i < all.size(); ++i)
    if (all[i] != ignore_index && (all[i] < 0 || all[i] > last))
      failf(Errc::invalid_argument, "targets[{}] is {}, outside of 0 to {}; {} is ignored", i,
            all[i], last, ignore_index);
  return all;
}

std::vector<double> to_doubles(const ConstTensorView& array) {
  std::vector<double> all(static_cast<std::size_t>(array.shape.numel()));
  with_type(array.dtype, [&]<typename T>(T) {
    const auto* from = static_cast<const T*>(array.data);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = to_double(from[i]);
  });
  return all;
}

std::vector<double> columns_of(const ConstTensorView& logits, std::size_t classes,
                               std::span<const std::uint32_t> rows) {
  std::vector<double> columns(classes * rows.size());
  with_type(logits.dtype, [&]<typename T>(T) {
    const auto* from = static_cast<const T*>(logits.data);
    for (std::size_t c = 0; c < classes; ++c)
      for (std::size_t i = 0; i < rows.size(); ++i)
        columns[c * rows.size() + i] = to_double(from[rows[i] * classes + c]);
  });
  return columns;
}

}  // namespace tutti::internal::losses
