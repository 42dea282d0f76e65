#pragma once

#include <exception>

#include <tutti/error.hpp>

namespace tutti::c10d_door {

/// Throws torch's exception for an Error, which Python sees as: invalid_argument and count_overflow
/// ValueError, unsupported NotImplementedError, the others torch.distributed.DistBackendError.
[[noreturn]] void throw_as_torch(const Error& error);
std::exception_ptr as_torch(const Error& error) noexcept;

/// Calls `f`; its Error is thrown as torch's exception.
template <typename F>
auto in_torch_errors(F&& f) -> decltype(f()) {
  try {
    return f();
  } catch (const Error& error) {
    throw_as_torch(error);
  }
}

}  // namespace tutti::c10d_door
