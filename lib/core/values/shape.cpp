#include <tutti/shape.hpp>

#include <algorithm>
#include <array>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "values/fail.hpp"

namespace [[gnu::visibility("default")]] tutti {
namespace {

/// Returns a * b. @throws Error count_overflow. Zero dimensions are left out of the product, so
/// that a shape such as [0, huge, huge], whose row_numel() would overflow, is refused.
std::int64_t times(std::int64_t a, std::int64_t b, std::span<const std::int64_t> dims) {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product))
    internal::failf(Errc::count_overflow, "shape [{}]: {} x {} elements exceed 2^63 - 1 = {}",
                    fmt::join(dims, ", "), a, b, std::numeric_limits<std::int64_t>::max());
  return product;
}

}  // namespace

Shape::Shape(std::span<const std::int64_t> dims) : Shape() {
  if (dims.size() > max_dims)
    internal::failf(Errc::invalid_argument,
                    "shape [{}] has {} dimensions; at most {} are supported", fmt::join(dims, ", "),
                    dims.size(), max_dims);
  std::int64_t product = 1;
  for (std::size_t i = dims.size(); i-- > 0;) {
    if (dims[i] < 0)
      internal::failf(Errc::invalid_argument, "shape [{}]: dimension {} is {}; it must be >= 0",
                      fmt::join(dims, ", "), i, dims[i]);
    if (dims[i] != 0) product = times(product, dims[i], dims);
    if (i > 0) row_numel_ *= dims[i];  // At most `product`, which leaves out zeros.
  }
  std::ranges::copy(dims, dims_);
  ndim_ = dims.size();
}

Shape Shape::with_rows(std::int64_t rows) const {
  std::array<std::int64_t, max_dims> changed{};
  std::ranges::copy(dims(), changed.begin());
  changed[0] = rows;
  return Shape(std::span<const std::int64_t>(changed.data(), std::max<std::size_t>(ndim_, 1)));
}

std::string to_string(const Shape& shape) {
  return fmt::format("[{}]", fmt::join(shape.dims(), ", "));
}

}  // namespace tutti
