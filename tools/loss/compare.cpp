#include "loss/compare.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include <fmt/format.h>

namespace tutti::tool {
namespace {

/// |a - b| / scale; 0 for equal values and two NaNs; infinity if the distance is undefined.
double relative(double a, double b, double scale) {
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  const double difference = std::abs(a - b) / scale;
  return std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
}

template <typename T>
double largest(const ConstTensorView& array) {
  const T* values = static_cast<const T*>(array.data);
  double most = 0;
  for (std::int64_t i = 0; i < array.shape.numel(); ++i)
    most = std::max(most, std::abs(static_cast<double>(values[i])));  // A NaN compares false.
  return most;
}

}  // namespace

void LossDifferences::add(const LossDifferences& others) {
  loss = std::max(loss, others.loss);
  gradient = std::max(gradient, others.gradient);
  wrong += others.wrong;
  if (others.worst && (!worst || others.worst->difference > worst->difference))
    worst = others.worst;
}

double LossComparison::compare(std::int64_t call, std::string_view array, std::int64_t index,
                               double expected, double got, double scale) {
  const double difference = relative(expected, got, scale);
  if (difference <= tolerance_) return difference;
  ++found_.wrong;
  if (!found_.worst || difference > found_.worst->difference)
    found_.worst = {rank_,
                    call,
                    std::string(array),
                    index,
                    fmt::format("{}", expected),
                    fmt::format("{}", got),
                    difference};
  return difference;
}

void LossComparison::loss(std::int64_t call, double expected, double got) {
  const double scale = std::max(1.0, std::abs(expected));
  found_.loss = std::max(found_.loss, compare(call, "loss", 0, expected, got, scale));
}

void LossComparison::gradient(std::int64_t call, const ConstTensorView& expected,
                              std::int64_t first_row, const ConstTensorView& got) {
  const auto against = [&]<typename T>(T) {
    const double scale = largest<T>(expected);
    const std::int64_t first = first_row * expected.shape.row_numel();
    const T* want = static_cast<const T*>(expected.data) + first;
    const T* have = static_cast<const T*>(got.data);
    for (std::int64_t i = 0; i < got.shape.numel(); ++i)
      found_.gradient = std::max(found_.gradient,
                                 compare(call, "gradient", first + i, static_cast<double>(want[i]),
                                         static_cast<double>(have[i]), scale));
  };
  if (got.dtype == DType::f64)
    against(double{});
  else
    against(float{});
}

}  // namespace tutti::tool
