#include "report/axis.hpp"

#include <array>
#include <cmath>
#include <cstddef>
#include <span>
#include <string_view>

#include <fmt/format.h>

#include "common/text.hpp"

namespace tutti::tool {
namespace {

/// "20 ms" of 20000 µs. The number before the unit is at least 1 where there is such a unit.
std::string with_unit(double value, std::span<const std::string_view> units) {
  std::size_t unit = 0;
  for (; unit + 1 < units.size() && value > 999; ++unit) value /= 1e3;
  return fmt::format("{:.4g} {}", value, units[unit]);
}

}  // namespace

std::string tick_text(Scale scale, double value) {
  static constexpr std::array<std::string_view, 3> times{"µs", "ms", "s"};
  static constexpr std::array<std::string_view, 5> rates{"B/s", "KB/s", "MB/s", "GB/s", "TB/s"};
  if (scale == Scale::bytes) return format_bytes(std::llround(value));
  if (scale == Scale::us) return with_unit(value, times);
  return scale == Scale::gbps ? with_unit(value * 1e9, rates) : fmt::format("{:g}", value);
}

bool has_place(const Axis& axis, double value) {
  return std::isfinite(value) && (!axis.log || value > 0);
}

Ruler::Ruler(const Axis& axis, Range values, double from, double to, double distance)
    : axis_(axis), range_(values), from_(from), to_(to) {
  const double most_ticks = std::max(2.0, std::abs(to - from) / distance);
  if (!axis.log)
    linear(most_ticks);
  else if (axis.scale == Scale::bytes)
    powers_of_two(most_ticks);
  else
    decades(most_ticks);
}

double Ruler::operator()(double value) const {
  const double share = axis_.log
                           ? std::log(value / range_.least) / std::log(range_.most / range_.least)
                           : (value - range_.least) / (range_.most - range_.least);
  return from_ + share * (to_ - from_);
}

/// The ends become ticks.
void Ruler::linear(double most_ticks) {
  if (range_.least > 0 && range_.least < range_.most / 2) range_.least = 0;
  if (range_.least == range_.most) range_.most += range_.most == 0 ? 1 : std::abs(range_.most);
  const double rough = (range_.most - range_.least) / most_ticks;
  double step = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {2.0, 2.5, 2.0})
    if (step < rough) step *= factor;
  const double first = std::floor(range_.least / step);
  const double last = std::ceil(range_.most / step);
  for (double i = first; i <= last; ++i) ticks_.push_back(i * step);
  range_ = {ticks_.front(), ticks_.back()};
}

/// The ends stay; a single value becomes the middle.
void Ruler::powers_of_two(double most_ticks) {
  if (range_.least == range_.most) range_ = {range_.least / 2, range_.most * 2};
  const double first = std::ceil(std::log2(range_.least));
  const double last = std::floor(std::log2(range_.most));
  const double step = std::ceil((last - first + 1) / most_ticks);
  for (double i = first; i <= last; i += step) ticks_.push_back(std::exp2(i));
  if (ticks_.empty()) ticks_ = {range_.least, range_.most};
}

/// The ends become ticks: 1, 2, 5 times a power of ten where there is room.
void Ruler::decades(double most_ticks) {
  static constexpr std::array<double, 3> steps{1, 2, 5};
  const double range = std::log10(range_.most / range_.least);
  const bool fine = 3 * (range + 1) <= most_ticks;
  const auto tick = [fine](int i) {
    if (!fine) return std::pow(10, i);
    const int decade = i >= 0 ? i / 3 : -((2 - i) / 3);
    return steps[static_cast<std::size_t>(i - 3 * decade)] * std::pow(10, decade);
  };
  constexpr double slack = 1 + 1e-9;
  int i = static_cast<int>(std::floor(std::log10(range_.least))) * (fine ? 3 : 1);
  while (tick(i + 1) <= range_.least * slack) ++i;
  const int stride = fine ? 1 : static_cast<int>(std::ceil((range + 1) / most_ticks));
  ticks_ = {tick(i)};
  while (ticks_.size() < 2 || ticks_.back() * slack < range_.most)
    ticks_.push_back(tick(i += stride));
  range_ = {ticks_.front(), ticks_.back()};
}

}  // namespace tutti::tool
