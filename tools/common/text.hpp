#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/names.hpp"
#include "common/option.hpp"

namespace tutti::tool {

/// Splits a comma-separated list. Refuses an empty item, naming `option`.
std::vector<std::string_view> split_list(std::string_view option, std::string_view text);

/// Reads an integer within [low, high]. Refuses anything else, naming `option`.
std::int64_t parse_integer(std::string_view option, std::string_view text, std::int64_t low,
                           std::int64_t high);

/// Reads a count from `low` to a million; empty for "auto". Refuses anything else, naming `option`.
std::optional<std::int64_t> parse_count(std::string_view option, std::string_view text,
                                        std::int64_t low);

/// Reads a finite number for which `fits` holds. Refuses anything else, naming the `expected`
/// range.
double parse_number(std::string_view option, std::string_view text, std::string_view expected,
                    bool (*fits)(double));

/// Reads one of `choices` and returns its index. Refuses anything else, listing them.
std::size_t parse_choice(std::string_view option, std::string_view text,
                         std::span<const std::string_view> choices);
template <Named E>
E parse_choice(std::string_view option, std::string_view text) {
  return static_cast<E>(parse_choice(option, text, names_of<E>));
}

/// Reads a duration above 0: "60s".
std::chrono::nanoseconds parse_timeout(std::string_view option, std::string_view text);

/// Readers of options, which set `to` by the functions above. The default is the value of `to`.
/// @{
template <typename T>
Reader to_integer(T& to, std::int64_t low, std::int64_t high) {
  std::string default_text;
  if constexpr (std::is_arithmetic_v<T>)
    if (std::cmp_greater_equal(to, low)) default_text = std::to_string(to);
  return {[&to, low, high](std::string_view option, const std::string& text) {
            const std::int64_t value = parse_integer(option, text, low, high);
            if constexpr (std::is_arithmetic_v<T>)
              to = static_cast<T>(value);
            else
              to = static_cast<typename T::value_type>(value);
          },
          {},
          default_text};
}
template <Named E>
Reader to_choice(E& to) {
  return {[&to](std::string_view option, const std::string& text) {
            to = parse_choice<E>(option, text);
          },
          {names_of<E>.begin(), names_of<E>.end()},
          std::string(name_of(to))};
}
/// Other texts than `choices` are possible.
Reader to_text(std::string& to, std::vector<std::string_view> choices);
Reader to_count(std::optional<std::int64_t>& to, std::int64_t low);
Reader to_duration(std::chrono::nanoseconds& to);
Reader to_timeout(std::chrono::nanoseconds& to);
/// @}

/// "1 rank", "2 ranks"; `many` for plurals other than `one` with an s.
std::string plural(std::int64_t count, std::string_view one, std::string_view many = {});

/// "8 B", "1 KiB", "1.5 MiB". Units of 1024; one decimal unless the value is a multiple of its
/// unit.
std::string format_bytes(std::int64_t bytes);

/// Microseconds with three decimals below 10, two below 100, otherwise one: "0.412", "41.20",
/// "5710.1".
std::string format_us(double us);

/// At most seven columns, three digits or more: "4.02e-4", "0.00123", "1.234", "250.1"; "n/a" for
/// an empty value.
std::string format_gbps(const std::optional<double>& gbps);

/// "0:21", "1:02:03".
std::string format_clock(double seconds);

/// Ascending numbers as ranges: "0-3,7".
std::string format_ranges(const std::vector<int>& numbers);

}  // namespace tutti::tool
