#pragma once

#include <exception>
#include <string>

#include <tutti/error.hpp>

namespace tutti::c10d_door {

/// Throws torch's exception for an Error, which Python sees as: invalid_argument and count_overflow
/// ValueError, unsupported NotImplementedError, the others torch.distributed.DistBackendError.
/// description: the group's, as torch keeps it. Only its name is the same on all ranks for sure, so
/// an Error has the name.
[[noreturn]] void throw_as_torch(const Error& error, const std::string& description = {});
std::exception_ptr as_torch(const Error& error, const std::string& description = {}) noexcept;

/// Calls `f`; its Error is thrown by throw_as_torch().
template <typename F>
auto in_torch_errors(const std::string& description, F&& f) -> decltype(f()) {
  try {
    return f();
  } catch (const Error& error) {
    throw_as_torch(error, description);
  }
}

}  // namespace tutti::c10d_door
