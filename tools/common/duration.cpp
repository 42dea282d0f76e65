#include "common/duration.hpp"

#include <array>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include <tutti/deadline.hpp>

#include "common/exit_code.hpp"

namespace tutti::tool {
namespace {

struct Unit {
  std::string_view name;
  double nanoseconds;
};
constexpr std::array<Unit, 6> units{
    {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {"m", 60e9}, {"h", 3600e9}}};

}  // namespace

std::chrono::nanoseconds parse_duration(std::string_view option, std::string_view text) {
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, problem] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  const std::string_view suffix(stop, static_cast<std::size_t>(end - stop));
  if (problem == std::errc() && number >= 0)
    for (const Unit& unit : units)
      if (unit.name == suffix)
        return Deadline::saturate(
            std::chrono::duration<double, std::nano>(std::round(number * unit.nanoseconds)));
  refuse("{} '{}': expected a duration such as 0.5s, 20ms or 10m (units ns us ms s m h)", option,
         text);
}

std::string format_duration(std::chrono::nanoseconds duration) {
  const double s = seconds(duration);
  if (s >= 3600) return fmt::format("{:.4g} h", s / 3600);
  if (s > 60) return fmt::format("{:.4g} m", s / 60);
  if (s >= 0.1) return fmt::format("{:.4g} s", s);
  if (s >= 1e-3) return fmt::format("{:.4g} ms", s * 1e3);
  return fmt::format("{:.4g} us", s * 1e6);
}

}  // namespace tutti::tool
