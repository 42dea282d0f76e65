#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <tutti/store/store.hpp>

// The checks and the counter arithmetic that all stores share, so that they refuse the same
// arguments.

namespace tutti::internal {

void check_key(std::string_view key);
void check_value(std::string_view key, std::size_t bytes);
std::string to_text(const Bytes& bytes);
Bytes to_bytes(std::string_view text);

/// Returns the new value of a counter, as the decimal text that is stored.
Bytes sum(std::string_view key, const std::optional<Bytes>& old, std::int64_t delta,
          std::int64_t& result);

[[noreturn]] void missing(std::string_view key);  ///< Throws the timeout error of get().

}  // namespace tutti::internal
