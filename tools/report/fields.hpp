#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "common/names.hpp"

// The description of a value: describe(fields, value) names each field once. JSON and its schema,
// CSV, and the columns of tables and Markdown are made from it.

namespace tutti::tool {

/// The column of a field in a table.
struct Column {
  std::string heading{};       ///< '\n' between its lines; empty: no column.
  int width = 0;               ///< Negative: left-aligned.
  std::string cell{};          ///< The value.
  std::string long_heading{};  ///< Heading in Markdown; empty: as `heading`.
};

/// The meaning of a field, in addition to its type. The bounds of a list apply to its items.
struct About {
  std::optional<int> at_least{};
  std::optional<int> above{};
  std::optional<int> below{};
  std::string_view format{};   ///< Format of a string: "date-time".
  std::string_view instead{};  ///< Text of an empty optional, instead of null.
  bool omitted = false;        ///< An empty optional is left out.
  bool constant = false;       ///< The field's only value.
  Column column{};
};

/// A value without fields.
using Plain =
    std::variant<bool, std::int64_t, std::uint64_t, double, std::string,
                 std::map<std::string, std::string>, std::vector<std::int64_t>,
                 std::vector<std::uint64_t>, std::vector<double>, std::vector<std::string>>;

/// A field and its value.
struct Field {
  std::string name{};
  std::string_view text{};
  About about{};
  Plain plain{};
  std::span<const std::string_view> names{};  ///< All possible values of `plain`.
  bool optional = false;
  bool absent = false;              ///< The optional is empty: `plain` has only its type.
  std::vector<Field> fields{};      ///< Fields of an object.
  std::vector<Field> items{};       ///< Items of a list of objects.
  std::vector<Field> item_type{};   ///< One example item of such a list; always present.
  std::string_view more_numbers{};  ///< Regular expression for names of additional fields.
};

template <typename T>
std::optional<T> unless_empty(const T& value) {
  return value.empty() ? std::nullopt : std::optional(value);
}

/// Collects the fields of a value.
class Fields {
 public:
  /// Adds a field: a number, a text, a named enumeration, an optional, a vector, or an object (a
  /// value with a describe(), or a function that names its fields).
  /// @param text  one line about the field, for the schema.
  template <typename T>
  void operator()(std::string_view name, const T& value, std::string_view text,
                  const About& about = {}) {
    Field field = field_of(value);
    field.name = name;
    field.text = text;
    field.about = about;
    list_.push_back(std::move(field));
  }
  template <typename T>
  void operator()(std::string_view name, const T& value, const About& about = {}) {
    (*this)(name, value, std::string_view(), about);
  }
  /// Allows additional fields, all numbers, whose names match this regular expression.
  void more_numbers(std::string_view pattern) { pattern_ = pattern; }

  template <typename T>
  static Field object(const T& value) {
    Fields inner;
    if constexpr (std::is_invocable_v<const T&, Fields&>)
      value(inner);
    else
      describe(inner, value);
    Field field;
    field.more_numbers = inner.pattern_;
    field.fields = std::move(inner.list_);
    return field;
  }

 private:
  static Field plain(Plain value) {
    Field field;
    field.plain = std::move(value);
    return field;
  }
  template <typename T>
  static Field field_of(const std::optional<T>& value) {
    Field field = field_of(value ? *value : T{});
    field.optional = true;
    field.absent = !value;
    return field;
  }
  template <typename T>
  static Field field_of(const std::vector<T>& list) {
    if constexpr (std::is_constructible_v<Plain, std::vector<T>>) {
      return plain(list);
    } else if constexpr (Named<T>) {
      std::vector<std::string> texts;
      for (const T item : list) texts.emplace_back(name_of(item));
      Field field = plain(std::move(texts));
      field.names = names_of<T>;
      return field;
    } else {
      Field field;
      field.item_type.push_back(object(T{}));
      for (const T& item : list) field.items.push_back(object(item));
      return field;
    }
  }
  template <typename T>
  static Field field_of(const T& value) {
    if constexpr (Named<T>) {
      Field field = plain(std::string(name_of(value)));
      field.names = names_of<T>;
      return field;
    } else if constexpr (std::is_same_v<T, bool> || std::is_floating_point_v<T> ||
                         std::is_same_v<T, std::map<std::string, std::string>>) {
      return plain(value);
    } else if constexpr (std::is_integral_v<T>) {
      if constexpr (std::is_signed_v<T>)
        return plain(static_cast<std::int64_t>(value));
      else
        return plain(static_cast<std::uint64_t>(value));
    } else if constexpr (std::is_convertible_v<T, std::string_view>) {
      return plain(std::string(std::string_view(value)));
    } else {
      return object(value);
    }
  }

  std::vector<Field> list_{};
  std::string_view pattern_{};
};

}  // namespace tutti::tool
