#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <string_view>
#include <utility>

#include <tutti/deadline.hpp>
#include <tutti/error.hpp>
#include <tutti/store/store.hpp>

namespace tutti::internal {

/// The value of a key, in bounded time even if the store does not answer.
std::optional<Bytes> peek(Store& store, std::string_view key);
/// The same. `answers`: set to whether the store has answered, unless it throws.
std::optional<Bytes> peek(Store& store, std::string_view key, bool& answers);

/// Blocks until a rank has set `key`, and returns the value. Meanwhile calls look(), which may
/// throw to end the wait, after pauses that grow from 20 ms to `pause`. @throws Error timeout at
/// the limit, and errors of look() and of the store.
template <typename Look>
Bytes await_key(Store& store, std::string_view key, Deadline limit, std::chrono::nanoseconds pause,
                const Look& look) {
  for (std::chrono::nanoseconds patience = std::chrono::milliseconds(20);;
       patience = std::min(2 * patience, pause)) {
    const auto turn = Deadline::after(patience);
    const bool last = limit.time() <= turn.time();
    try {
      return store.get(key, last ? limit : turn);
    } catch (const Error& error) {
      if (error.code() != Errc::timeout) throw;
      look();
      if (auto bytes = peek(store, key)) return *std::move(bytes);
      if (last) throw;
    }
  }
}

}  // namespace tutti::internal
