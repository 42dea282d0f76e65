#pragma once

#include <iosfwd>
#include <string>
#include <string_view>

// The texts of name_of() and to_string() for streams (`std::cout << DType::f32`) and, from its
// version 10 on, for fmt (`fmt::print("{}", shape)`).

namespace [[gnu::visibility("default")]] tutti {

/// The text of a value that has name_of(), for fmt.
template <typename T>
auto format_as(const T& value) -> decltype(std::string_view(name_of(value))) {
  return name_of(value);
}
/// The text of a value that has to_string(), for fmt.
template <typename T>
auto format_as(const T& value) -> decltype(std::string(to_string(value))) {
  return to_string(value);
}

template <typename T>
auto operator<<(std::ostream& out, const T& value) -> decltype(out << format_as(value)) {
  return out << format_as(value);
}

}  // namespace tutti
