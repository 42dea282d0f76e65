#include "torch/errors.hpp"

#include <exception>
#include <string>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace tutti::c10d_door {
namespace {

/// The text of an error. A description given to new_group() replaces the number by which torch
/// calls the group; only the number is the same on all ranks for sure, so it is the group's name.
std::string text_of(const Error& error) {
  std::string text = error.what();
  std::string description;
  try {
    description = ::c10d::resolve_process_group(error.where().group)->getGroupDesc();
  } catch (const std::exception&) {  // No group of torch, or not yet.
  }
  if (description.empty() || description == "undefined") return text;
  const std::string name = "group '" + error.where().group + "'";
  const std::string shown = "group '" + description + "'";
  for (auto at = text.find(name); at != std::string::npos; at = text.find(name, at + shown.size()))
    text.replace(at, name.size(), shown);
  return text;
}

}  // namespace

void throw_as_torch(const Error& error) {
  const std::string text = text_of(error);
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

std::exception_ptr as_torch(const Error& error) noexcept {
  try {
    throw_as_torch(error);
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace tutti::c10d_door
