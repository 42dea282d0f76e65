#pragma once

#include <charconv>
#include <cstddef>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <fmt/format.h>

namespace tutti::tool {

/// A message between ranks of the same program: the parts of a value as text, in order, each with
/// its length ("3:abc"). A struct names its parts in one function for both directions: void
/// parts(Message&, Struct&).
class Message {
 public:
  Message() = default;  ///< Begins an empty message to write.
  explicit Message(std::string_view text) : rest_(text), reads_(true) {}
  const std::string& text() const noexcept { return text_; }

  /// Writes the values, or reads them. @throws std::runtime_error when the text has another form.
  template <typename... T>
  void operator()(T&... values) {
    (one(values), ...);
  }

 private:
  void one(std::string& text) {
    if (!reads_) {
      text_ += fmt::format("{}:{}", text.size(), text);
      return;
    }
    std::size_t size = 0;
    const char* end = rest_.data() + rest_.size();
    const auto [colon, problem] = std::from_chars(rest_.data(), end, size);
    if (problem != std::errc() || static_cast<std::size_t>(end - colon) < size + 1)
      throw std::runtime_error("a message of another rank cannot be read");
    text.assign(colon + 1, size);
    rest_.remove_prefix(static_cast<std::size_t>(colon - rest_.data()) + 1 + size);
  }
  template <typename T>
  void one(std::optional<T>& value) {
    int there = value ? 1 : 0;
    one(there);
    if (there == 0) return value.reset();
    if (!value) value.emplace();
    one(*value);
  }
  template <typename T>
  void one(std::vector<T>& list) {
    std::size_t size = list.size();
    one(size);
    list.resize(size);
    for (T& item : list) one(item);
  }
  template <typename T>
  void one(T& value) {
    if constexpr (std::is_enum_v<T>) {
      auto number = static_cast<int>(value);
      one(number);
      value = static_cast<T>(number);
    } else if constexpr (std::is_arithmetic_v<T>) {
      std::string digits = fmt::format("{}", value);
      one(digits);
      std::from_chars(digits.data(), digits.data() + digits.size(), value);
    } else {
      parts(*this, value);
    }
  }

  std::string text_{};
  std::string_view rest_{};
  bool reads_ = false;
};

template <typename T>
std::string to_message(T value) {
  Message message;
  message(value);
  return message.text();
}

template <typename T>
T from_message(std::string_view text) {
  T value{};
  Message message(text);
  message(value);
  return value;
}

}  // namespace tutti::tool
