#pragma once

#include <string>

namespace tutti::internal {

/// True if a connection to host:port is accepted now.
bool is_listening(const std::string& host, int port);

}  // namespace tutti::internal
