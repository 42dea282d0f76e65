#pragma once

#include <utility>

#include <fmt/format.h>

#include <tutti/error.hpp>

namespace tutti::internal {

/// Throws Error with a formatted message. The format should give the values, both sides of a
/// comparison, and what to change.
template <typename... Args>
[[noreturn, gnu::cold, gnu::noinline]] void failf(Errc code, fmt::format_string<Args...> format,
                                                  Args&&... args) {
  fail(code, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace tutti::internal
