#include "losses/elements.hpp"

#include <cmath>
#include <string>

#include <fmt/format.h>

namespace tutti::internal::losses {

void check_elements(std::string_view what, const ConstTensorView& array) {
  if (array.shape.numel() == 0) return;
  if (array.data == nullptr) failf(Errc::invalid_argument, "{} are null", what);
  if (array.device.type != DeviceType::cpu)
    failf(Errc::unsupported, "{} are on {}; losses work on host memory", what,
          to_string(array.device));
  if (!is_float(array.dtype)) return;
  const auto values = to_doubles(array);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i])) continue;
    // By its place in the array.
    std::string place;
    auto left = static_cast<std::int64_t>(i);
    for (std::size_t d = array.shape.ndim(); d-- > 0; left /= array.shape.dims()[d])
      place = fmt::format("{}{}{}", left % array.shape.dims()[d], place.empty() ? "" : ", ", place);
    failf(Errc::invalid_argument, "{}[{}] is {}; {} must be finite", what, place, values[i], what);
  }
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
