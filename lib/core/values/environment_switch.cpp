#include "values/environment_switch.hpp"

#include <charconv>
#include <cstdlib>
#include <string_view>
#include <system_error>

#include "values/fail.hpp"

namespace tutti::internal {

namespace {

std::string_view value_of(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

}  // namespace

bool environment_switch(const char* name, bool otherwise) {
  const auto value = value_of(name);
  if (value.empty()) return otherwise;
  if (value == "0" || value == "1") return value == "1";
  failf(Errc::invalid_argument, "{} is '{}'; it must be 0 or 1", name, value);
}

std::int64_t environment_number(const char* name, std::int64_t otherwise, std::int64_t most) {
  const auto value = value_of(name);
  if (value.empty()) return otherwise;
  std::int64_t number = -1;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error == std::errc() && end == value.data() + value.size() && number >= 0 && number <= most)
    return number;
  failf(Errc::invalid_argument, "{} is '{}'; it must be a number from 0 to {}", name, value, most);
}

}  // namespace tutti::internal
