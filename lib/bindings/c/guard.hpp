#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include <tutti/c/tutti.h>
#include <tutti/error.hpp>

// The boundary between C and C++: exceptions become a status and a text of the thread;
// structs are read in the size that the caller has.

namespace tutti::c_abi {

/// Keeps the exception that is being handled as this thread's last error, and returns its code.
tutti_status remember() noexcept;
constexpr tutti_status status_of(Errc code) noexcept {
  return static_cast<tutti_status>(code) + 1;
}

template <typename F>
tutti_status guard(F&& f) noexcept {
  try {
    f();
    return TUTTI_OK;
  } catch (...) {
    return remember();
  }
}

/// The number of errors that remember() has kept on this thread.
std::uint64_t error_count() noexcept;
/// Throws for a function of the caller's that returned `status`: this thread's last error if it has
/// that code and came after `before` errors, because the function passed it on.
void check(tutti_status status, const char* function, std::uint64_t before);

/// Calls a function of the caller's and checks its status.
template <typename F>
void call_back(const char* function, F&& f) {
  const auto before = error_count();
  check(f(), function, before);
}

[[noreturn]] void fail_null(const char* what);

/// The object of a pointer that must not be null. @throws Error invalid_argument.
template <typename T>
T& deref(T* pointer, const char* what) {
  if (pointer == nullptr) [[unlikely]]
    fail_null(what);
  return *pointer;
}

/// A list of the caller's. @throws Error invalid_argument for a null pointer, unless it is empty.
template <typename T>
std::span<T> list_of(T* pointer, std::size_t count, const char* what) {
  if (count > 0) (void)deref(pointer, what);
  return {pointer, count};
}
inline std::span<const std::byte> bytes_of(const void* data, std::size_t count) {
  return list_of(static_cast<const std::byte*>(data), count, "a list of bytes");
}

/// An out-parameter, which is set to null until the function succeeds. Call it before all that can
/// throw, and assign to the reference: of `handle(to) = f()`, f() runs first.
template <typename T>
T*& handle(T** to) {
  T*& out = deref(to, "an out-parameter");
  out = nullptr;
  return out;
}

/// The same for one that may be absent.
template <typename T>
void clear(T** to) noexcept {
  if (to != nullptr) *to = nullptr;
}

/// Checks the size of a struct and that the fields which this library does not know are 0.
/// @throws Error invalid_argument, unsupported.
void check_struct(const void* from, std::size_t size, std::size_t known);

/// Returns a struct of the caller's; fields that its program does not have, and all of a null
/// pointer, are 0.
template <typename T>
T read(const T* from) {
  T to{};
  if (from == nullptr) return to;
  if (from->size == sizeof(T)) return *from;
  check_struct(from, from->size, sizeof(T));
  std::memcpy(&to, from, std::min(from->size, sizeof(T)));
  return to;
}

/// Writes the fields that the caller's struct has.
template <typename T>
void write(T* to, T from) {
  const auto size = deref(to, "an out-parameter").size;
  check_struct(nullptr, size, sizeof(T));
  from.size = size;
  std::memcpy(static_cast<void*>(to), &from, std::min(size, sizeof(T)));
}

/// Element i of a list of structs, whose distance is the size that the caller's program gives them.
template <typename T>
const T* element(const T* list, std::size_t i) {
  return reinterpret_cast<const T*>(reinterpret_cast<const std::byte*>(list) + i * list->size);
}

}  // namespace tutti::c_abi
