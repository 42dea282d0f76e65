#include "torch/errors.hpp"

#include <exception>
#include <string>

#include <c10/util/Exception.h>

namespace tutti::c10d_door {
namespace {

/// The text of an error, whose group gets the description in place of its name, which for torch's
/// groups is a number.
std::string text_of(const Error& error, const std::string& description) {
  std::string text = error.what();
  if (description.empty() || description == "undefined" || description == "default_pg") return text;
  const std::string name = "group '" + error.where().group + "'";
  const std::string shown = "group '" + description + "'";
  for (auto at = text.find(name); at != std::string::npos; at = text.find(name, at + shown.size()))
    text.replace(at, name.size(), shown);
  return text;
}

}  // namespace

void throw_as_torch(const Error& error, const std::string& description) {
  const std::string text = text_of(error, description);
  switch (error.code()) {
    case Errc::invalid_argument:
    case Errc::count_overflow:
      C10_THROW_ERROR(ValueError, c10::str("tutti: ", text));
    case Errc::unsupported:
      C10_THROW_ERROR(NotImplementedError, c10::str("tutti: ", text));
    // Programs, torch's tests and torchft's look for these words of torch's Gloo.
    case Errc::timeout:
      C10_THROW_ERROR(DistBackendError,
                      c10::str("tutti: Timed out waiting: ", text, " (Socket Timeout)"));
    case Errc::peer_lost:
      C10_THROW_ERROR(DistBackendError, c10::str("tutti: Connection closed by peer: ", text));
    default:
      C10_THROW_ERROR(DistBackendError, c10::str("tutti: ", text));
  }
}

std::exception_ptr as_torch(const Error& error, const std::string& description) noexcept {
  try {
    throw_as_torch(error, description);
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace tutti::c10d_door
