#pragma once

#include <span>
#include <string>
#include <string_view>

#include <tutti/backend/backend_table.hpp>

// The choice of "auto" for processes: every rank tells its host and the backends that it can use,
// and all ranks draw the same conclusion.

namespace tutti::internal {

/// Splits "name:args" at the first colon.
constexpr std::string_view backend_name(std::string_view backend) noexcept {
  return backend.substr(0, backend.find(':'));
}
constexpr std::string_view backend_args(std::string_view backend) noexcept {
  const auto colon = backend.find(':');
  return colon == std::string_view::npos ? std::string_view() : backend.substr(colon + 1);
}

/// True if "auto" or "auto:args" is to choose for ranks that may be processes.
bool is_chosen_together(std::string_view backend, Device device, bool one_process) noexcept;

/// The facts by which all ranks choose, of a rank of this process on `host`
/// (values/host_identity.hpp). `args`: the text after "auto:".
std::string backend_facts(std::string_view host, std::string_view args);

/// A backend of the table and its argument, if "auto" gives it one.
struct Decision {
  std::string_view backend;
  std::string args;
  std::string reason;
};
/// The choice for ranks with these facts. @throws Error unsupported if no backend serves them.
Decision decide_together(std::span<const std::string> facts);

/// The same as an entry of the table of a rank. `args`: the text after "auto:" on this rank.
/// @throws Error unsupported if no backend serves them.
BackendChoice choose_together(std::span<const std::string> facts, std::string_view args);

}  // namespace tutti::internal
