#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace tutti::internal {

/// Ports, the first and the last included.
struct PortRange {
  int first = 0;
  int last = 0;

  int size() const noexcept { return last - first + 1; }
  /// The first quarter, for ports that are derived from a job: listen_at_any_port() takes others.
  PortRange of_jobs() const noexcept { return {first, first + (size() - 1) / 4}; }
  std::string text() const;  ///< "29800-29850"
};

/// TUTTI_PORTS: the ports at which this process may listen; nothing if it is not set.
/// @throws Error invalid_argument for a value that is no range.
std::optional<PortRange> port_range();

/// Calls `listen` with port 0, or if there is a port_range() with its ports that are not of_jobs(),
/// from a random one on, until the result is not EADDRINUSE. `listen` returns a value of errno, 0
/// if it listens. Returns the last result. @throws Error resource_exhausted if no port of the range
/// is free; `what`: the begin of its text.
int listen_at_any_port(std::string_view what, const std::function<int(int port)>& listen);

}  // namespace tutti::internal
