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

/// Adds `delta` to a counter with the stored value `old`; empty: 0. Returns the new value as the
/// text to store, and as a number in `result`. @throws Error invalid_argument if `old` is not a
/// number, count_overflow.
Bytes sum(std::string_view key, const std::optional<Bytes>& old, std::int64_t delta,
          std::int64_t& result);

[[noreturn]] void missing(std::string_view key);  ///< Throws the timeout error of get().

}  // namespace tutti::internal
