#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "common/names.hpp"

namespace tutti::tool {

/// The texts of an axis's ticks: "64 KiB", "20 µs", "500 MB/s", "0.5".
enum class Scale : std::uint8_t { bytes, us, gbps, number };
template <>
inline constexpr Names<4> names_of<Scale>{"bytes", "us", "gbps", "number"};

struct Axis {
  std::string name{};
  Scale scale = Scale::number;
  bool log = true;
};

/// False for what a logarithm does not have, and for what is not finite.
bool has_place(const Axis& axis, double value);
std::string tick_text(Scale scale, double value);

/// The smallest and the largest of some values.
struct Range {
  double least = std::numeric_limits<double>::infinity();
  double most = -std::numeric_limits<double>::infinity();

  void add(double value) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
};

/// Maps the values of an axis to pixels.
class Ruler {
 public:
  /// `from`, `to`: pixels of the ends. `distance`: pixels between ticks at least.
  Ruler(const Axis& axis, Range values, double from, double to, double distance);

  double operator()(double value) const;
  const std::vector<double>& ticks() const { return ticks_; }

 private:
  void linear(double most_ticks);
  void powers_of_two(double most_ticks);
  void decades(double most_ticks);

  Axis axis_;
  Range range_;
  double from_;
  double to_;
  std::vector<double> ticks_{};
};

}  // namespace tutti::tool
