#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

// Messages between ranks of the same program. A struct names the fields that it sends:
// NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Struct, field, field).

template <typename T>
struct nlohmann::adl_serializer<std::optional<T>> {
  static void to_json(json& to, const std::optional<T>& value) {
    to = value ? json(*value) : json();
  }
  static void from_json(const json& from, std::optional<T>& value) {
    value = from.is_null() ? std::nullopt : std::optional(from.get<T>());
  }
};

namespace tutti::tool {

/// CBOR, which has every number and every byte of a text.
template <typename T>
std::string to_message(const T& value) {
  std::string text;
  nlohmann::json::to_cbor(nlohmann::json(value), text);
  return text;
}

/// @throws std::exception when the text is no message of this type.
template <typename T>
T from_message(std::string_view text) {
  return nlohmann::json::from_cbor(text).get<T>();
}

}  // namespace tutti::tool
