#pragma once

#include <charconv>
#include <concepts>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "values/fail.hpp"

namespace tutti::c_abi {

/// Reads options from a text like "classes=3 reduction=none". Each option that a loss has is read
/// once; then finish() refuses the names that are left.
class OptionText {
 public:
  /// @throws Error invalid_argument for a word without '=' and a name that occurs twice.
  explicit OptionText(std::string_view from) {
    while (true) {
      from.remove_prefix(std::min(from.find_first_not_of(' '), from.size()));
      if (from.empty()) return;
      const auto word = from.substr(0, from.find(' '));
      const auto equals = word.find('=');
      if (equals == std::string_view::npos)
        internal::failf(Errc::invalid_argument, "'{}' is not of the form name=value", word);
      if (!given_.emplace(word.substr(0, equals), word.substr(equals + 1)).second)
        internal::failf(Errc::invalid_argument, "'{}': the option occurs twice", word);
      from.remove_prefix(word.size());
    }
  }

  template <typename T>
  requires std::is_arithmetic_v<T>
  void read(std::string_view name, T& to) {
    if (const auto value = take(name)) to = number<T>(name, *value);
  }
  template <typename T>
  void read(std::string_view name, std::optional<T>& to) {
    if (const auto value = take(name)) to = number<T>(name, *value);
  }
  void read(std::string_view name, std::vector<double>& to) {
    const auto value = take(name);
    if (!value) return;
    to.clear();
    for (std::size_t begin = 0; begin <= value->size();) {
      const auto end = std::min(value->find(',', begin), value->size());
      to.push_back(number<double>(name, value->substr(begin, end - begin)));
      begin = end + 1;
    }
  }
  /// `names`: of the enumerators, in their order.
  template <typename Enum>
  void read(std::string_view name, Enum& to, std::initializer_list<std::string_view> names) {
    const auto value = take(name);
    if (!value) return;
    std::string all;
    int i = 0;
    for (const auto each : names) {
      if (each == *value) {
        to = static_cast<Enum>(i);
        return;
      }
      all.append(" ").append(each);
      ++i;
    }
    internal::failf(Errc::invalid_argument, "option {}: '{}' is none of:{}", name, *value, all);
  }
  void finish() const {
    if (!given_.empty())
      internal::failf(Errc::invalid_argument, "unknown option '{}'; there are:{}",
                      given_.begin()->first, known_);
  }

 private:
  std::optional<std::string_view> take(std::string_view name) {
    known_.append(" ").append(name);
    const auto node = given_.extract(name);
    return node.empty() ? std::nullopt : std::optional(node.mapped());
  }
  template <typename T>
  static T number(std::string_view name, std::string_view value) {
    if constexpr (std::same_as<T, bool>) {
      if (value == "true" || value == "1") return true;
      if (value == "false" || value == "0") return false;
      internal::failf(Errc::invalid_argument, "option {}: '{}' is neither true nor false", name,
                      value);
    } else {
      T to{};
      const auto* end = value.data() + value.size();
      const auto parsed = std::from_chars(value.data(), end, to);
      if (parsed.ec != std::errc() || parsed.ptr != end)
        internal::failf(Errc::invalid_argument, "option {}: '{}' is not a number{}", name, value,
                        std::is_integral_v<T> ? " without a fraction" : "");
      return to;
    }
  }

  std::map<std::string_view, std::string_view> given_;
  std::string known_;
};

}  // namespace tutti::c_abi
