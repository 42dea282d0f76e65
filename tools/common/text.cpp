#include "common/text.hpp"

#include <array>
#include <charconv>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/duration.hpp"
#include "common/exit_code.hpp"

namespace tutti::tool {

std::vector<std::string_view> split_list(std::string_view option, std::string_view text) {
  std::vector<std::string_view> items;
  std::string_view rest = text;
  while (true) {
    const std::size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    if (item.empty()) refuse("{}: empty item in '{}'", option, text);
    items.push_back(item);
    if (comma == std::string_view::npos) return items;
    rest.remove_prefix(comma + 1);
  }
}

std::int64_t parse_integer(std::string_view option, std::string_view text, std::int64_t low,
                           std::int64_t high) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, problem] = std::from_chars(text.data(), end, value);
  if (problem != std::errc() || stop != end || text.empty() || value < low || value > high)
    refuse("{} '{}': expected a whole number from {} to {}", option, text, low, high);
  return value;
}

std::optional<std::int64_t> parse_count(std::string_view option, std::string_view text,
                                        std::int64_t low) {
  if (text == "auto") return std::nullopt;
  std::int64_t number = -1;
  const char* end = text.data() + text.size();
  const auto [stop, problem] = std::from_chars(text.data(), end, number);
  if (problem != std::errc() || stop != end || number < low || number > 1'000'000)
    refuse("{} '{}': expected auto or a whole number from {} to 1000000", option, text, low);
  return number;
}

double parse_number(std::string_view option, std::string_view text, std::string_view expected,
                    bool (*fits)(double)) {
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, problem] = std::from_chars(text.data(), end, number);
  if (problem != std::errc() || stop != end || !std::isfinite(number) || !fits(number))
    refuse("{} '{}': expected a number {}", option, text, expected);
  return number;
}

std::size_t parse_choice(std::string_view option, std::string_view text,
                         std::span<const std::string_view> choices) {
  for (std::size_t i = 0; i < choices.size(); ++i)
    if (choices[i] == text) return i;
  refuse("{} '{}': expected one of: {}", option, text, fmt::join(choices, " "));
}

std::chrono::nanoseconds parse_timeout(std::string_view option, std::string_view text) {
  const std::chrono::nanoseconds timeout = parse_duration(option, text);
  if (timeout.count() == 0) refuse("{} '{}': must be above 0", option, text);
  return timeout;
}

namespace {

/// "0.5s".
std::string default_of(std::chrono::nanoseconds duration) {
  std::string text = format_duration(duration);
  std::erase(text, ' ');
  return text;
}

}  // namespace

Reader to_text(std::string& to, std::vector<std::string_view> choices) {
  return {[&to](std::string_view, const std::string& text) { to = text; }, std::move(choices), to};
}

Reader to_count(std::optional<std::int64_t>& to, std::int64_t low) {
  return {[&to, low](std::string_view option, const std::string& text) {
            to = parse_count(option, text, low);
          },
          {"auto"},
          to ? std::to_string(*to) : "auto"};
}

Reader to_duration(std::chrono::nanoseconds& to) {
  return {[&to](std::string_view option, const std::string& text) {
            to = parse_duration(option, text);
          },
          {},
          default_of(to)};
}

Reader to_timeout(std::chrono::nanoseconds& to) {
  return {
      [&to](std::string_view option, const std::string& text) { to = parse_timeout(option, text); },
      {},
      default_of(to)};
}

std::string plural(std::int64_t count, std::string_view one, std::string_view many) {
  if (count == 1 || !many.empty()) return fmt::format("{} {}", count, count == 1 ? one : many);
  return fmt::format("{} {}s", count, one);
}

std::string format_bytes(std::int64_t bytes) {
  static constexpr std::array<std::string_view, 6> units{"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  std::int64_t size = 1;
  while (unit + 1 < units.size() && bytes / size >= 1024) {
    size *= 1024;
    ++unit;
  }
  if (bytes % size == 0) return fmt::format("{} {}", bytes / size, units[unit]);
  return fmt::format("{:.1f} {}", static_cast<double>(bytes) / static_cast<double>(size),
                     units[unit]);
}

std::string format_us(double us) {
  if (us < 10) return fmt::format("{:.3f}", us);
  if (us < 100) return fmt::format("{:.2f}", us);
  return fmt::format("{:.1f}", us);
}

std::string format_gbps(const std::optional<double>& gbps) {
  if (!gbps) return "n/a";
  if (*gbps > 0 && *gbps < 0.001) {  // "4.02e-4": without the zero that fmt writes, it fits.
    std::string text = fmt::format("{:.2e}", *gbps);
    if (const auto zero = text.find("e-0"); zero != text.npos) text.erase(zero + 2, 1);
    return text;
  }
  if (*gbps < 0.1) return fmt::format("{:.5f}", *gbps);
  if (*gbps < 100) return fmt::format("{:.3f}", *gbps);
  return fmt::format("{:.1f}", *gbps);
}

std::string format_clock(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::lround(seconds));
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string format_ranges(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text +=
        last == i ? fmt::format("{}", numbers[i]) : fmt::format("{}-{}", numbers[i], numbers[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace tutti::tool
