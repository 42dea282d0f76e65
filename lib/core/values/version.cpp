#include <tutti/version.hpp>

#include <fmt/format.h>

#include <string>

namespace [[gnu::visibility("default")]] tutti {

Version library_version() noexcept {
  return header_version;
}

std::string_view library_version_string() noexcept {
  static const std::string text =
      fmt::format("{}.{}.{}", header_version.major, header_version.minor, header_version.patch);
  return text;
}

}  // namespace tutti
