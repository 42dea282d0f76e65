#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "values/bytes.hpp"
#include "values/fail.hpp"
#include "values/hash.hpp"

// The saved state of a loss or hook: 8 characters that name the format, a digest of the contents,
// the contents.

namespace tutti::internal {

inline std::uint64_t digest_of(std::string_view content) {
  Hash hash;
  hash.add(content);
  return hash.value();
}

inline std::string seal(std::string_view magic, const Writer& content) {
  Writer head;
  head.raw(magic).u64(digest_of(content.view()));
  std::string state;
  state.reserve(head.view().size() + content.view().size());
  return state.append(head.view()).append(content.view());
}

struct OpenedState {
  std::uint64_t digest;
  Reader content;
};

/// Checks a state that seal() made, and returns its digest and contents. Errors call the state
/// `what`, a noun without an article. @throws Error invalid_argument when `state` was not sealed
/// with this magic, or has changed since then.
inline OpenedState unseal(std::string_view magic, std::string_view what, std::string_view state) {
  if (!state.starts_with(magic))
    failf(Errc::invalid_argument, "the given state ({} bytes) is not a {}", state.size(), what);
  Reader in(state.substr(magic.size()), Errc::invalid_argument, what);
  const auto digest = in.u64();
  if (digest != digest_of(state.substr(state.size() - in.left())))
    failf(Errc::invalid_argument, "the {} is damaged ({} bytes)", what, state.size());
  return {digest, in};
}

}  // namespace tutti::internal
