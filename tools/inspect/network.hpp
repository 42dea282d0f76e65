#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "inspect/checkup.hpp"
#include "run/child.hpp"

namespace tutti::tool {

/// Checks interfaces and names of this host.
void check_network(Checkup& checkup);

/// A TCP port at a numeric address, on which the kernel accepts connections while this lives. No
/// byte is read from them or sent.
struct OpenPort {
  explicit OpenPort(const std::string& address);
  Descriptor socket{};
  int port = 0;       ///< 0: the address cannot be used, or is empty.
  std::string why{};  ///< Why it cannot.
};

/// An attempt to connect to a port of another rank.
struct Attempt {
  int rank = 0;
  std::string address{};  ///< Numeric.
  int port = 0;
  std::string failure{};  ///< Empty after success.
};
void parts(Message& message, Attempt& attempt);

/// Connects to all at the same time, until the timeout, and closes the connections.
void connect_to_all(std::vector<Attempt>& attempts, std::chrono::milliseconds timeout);

}  // namespace tutti::tool
