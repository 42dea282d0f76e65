#pragma once

#include <concepts>
#include <new>

#include <tutti/error.hpp>

// Errors where an exception would end the process: in destructors, in noexcept functions, and on
// threads of a transport.

namespace tutti::internal {

/// An error of this code whose text says that there was no memory for a text. Allocates nothing:
/// all codes have been made when the library was loaded.
[[gnu::visibility("default")]] const Error& undescribed(Errc code) noexcept;

/// Returns make(), or undescribed(code) if it throws for lack of memory.
template <std::invocable Make>
Error described(Errc code, const Make& make) noexcept {
  try {
    return make();
  } catch (...) {
    return undescribed(code);
  }
}

/// The error of a rank whose memory ran out.
inline const Error& out_of_memory() noexcept {
  return undescribed(Errc::resource_exhausted);
}

/// Returns f(). @throws Error resource_exhausted instead of std::bad_alloc.
template <std::invocable F>
decltype(auto) without_bad_alloc(const F& f) {
  try {
    return f();
  } catch (const std::bad_alloc&) {
    throw Error(out_of_memory());
  }
}

}  // namespace tutti::internal
