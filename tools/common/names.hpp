#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <type_traits>

namespace tutti::tool {

/// The names of an enumeration's values, in order, for the command line, tables and JSON.
/// Specialised next to the enumeration.
template <typename E>
inline constexpr bool names_of = false;

template <std::size_t N>
using Names = std::array<std::string_view, N>;

template <typename E>
concept Named = !std::is_same_v<decltype(names_of<E>), const bool>;

template <Named E>
constexpr std::string_view name_of(E value) noexcept {
  return names_of<E>[static_cast<std::size_t>(value)];
}

}  // namespace tutti::tool
