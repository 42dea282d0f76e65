#include "torch/errors.hpp"

#include <c10/util/Exception.h>

namespace tutti::c10d_door {

void throw_as_torch(const Error& error) {
  switch (error.code()) {
    case Errc::invalid_argument:
    case Errc::count_overflow:
      C10_THROW_ERROR(ValueError, c10::str("tutti: ", error.what()));
    case Errc::unsupported:
      C10_THROW_ERROR(NotImplementedError, c10::str("tutti: ", error.what()));
    // Programs, torch's tests and torchft's look for these words of torch's Gloo.
    case Errc::timeout:
      C10_THROW_ERROR(DistBackendError,
                      c10::str("tutti: Timed out waiting: ", error.what(), " (Socket Timeout)"));
    case Errc::peer_lost:
      C10_THROW_ERROR(DistBackendError,
                      c10::str("tutti: Connection closed by peer: ", error.what()));
    default:
      C10_THROW_ERROR(DistBackendError, c10::str("tutti: ", error.what()));
  }
}

std::exception_ptr as_torch(const Error& error) noexcept {
  try {
    throw_as_torch(error);
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace tutti::c10d_door
