#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/names.hpp"

namespace tutti::tool {

/// The items of a comma-separated list. An empty item is refused, naming `option`.
std::vector<std::string_view> split_list(std::string_view option, std::string_view text);

/// A whole number within [low, high]; anything else is refused, naming `option`.
std::int64_t parse_integer(std::string_view option, std::string_view text, std::int64_t low,
                           std::int64_t high);

/// A finite number for which `fits` holds; anything else is refused, saying what was `expected`.
double parse_number(std::string_view option, std::string_view text, std::string_view expected,
                    bool (*fits)(double));

/// One of `choices`, as its index; anything else is refused, listing them.
std::size_t parse_choice(std::string_view option, std::string_view text,
                         std::span<const std::string_view> choices);
template <Named E>
E parse_choice(std::string_view option, std::string_view text) {
  return static_cast<E>(parse_choice(option, text, names_of<E>));
}

/// A duration above 0: "60s".
std::chrono::nanoseconds parse_timeout(std::string_view option, std::string_view text);

/// "1 rank", "2 ranks"; `many` where that is not `one` with an s.
std::string plural(std::int64_t count, std::string_view one, std::string_view many = {});

/// "8 B", "1 KiB", "1.5 MiB". Units of 1024; a value that is not a whole number of its unit shows
/// a decimal.
std::string format_bytes(std::int64_t bytes);

/// Microseconds with about three significant digits: "0.412", "41.20", "5710.1".
std::string format_us(double us);

/// In at most seven columns: "0.00012", "1.234", "250.1"; "n/a" for nothing.
std::string format_gbps(const std::optional<double>& gbps);

/// "0:21", "1:02:03".
std::string format_clock(double seconds);

/// Ascending numbers as ranges: "0-3,7".
std::string format_ranges(const std::vector<int>& numbers);

}  // namespace tutti::tool
