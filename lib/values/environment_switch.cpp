#include "values/environment_switch.hpp"

#include <cstdlib>
#include <string_view>

#include "values/fail.hpp"

namespace tutti::internal {

bool environment_switch(const char* name, bool otherwise) {
  const char* text = std::getenv(name);
  const std::string_view value = text == nullptr ? "" : text;
  if (value.empty()) return otherwise;
  if (value == "0" || value == "1") return value == "1";
  failf(Errc::invalid_argument, "{} is '{}'; it must be 0 or 1", name, value);
}

}  // namespace tutti::internal
