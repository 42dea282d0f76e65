#pragma once

#include <chrono>
#include <string>

#include "store/tcp_socket.hpp"

namespace tutti::internal {

/// A connection to the store server at host:port, past the greetings, non-blocking. Tries again
/// with growing pauses until the timeout.
/// @throws Error timeout when nobody answers, resource_exhausted when the server is full,
/// invalid_argument when something else answers, unsupported for another version.
Descriptor connect_to_store(const std::string& host, int port, std::chrono::nanoseconds timeout);

}  // namespace tutti::internal
