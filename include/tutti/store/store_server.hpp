#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include <tutti/deadline.hpp>
#include <tutti/log.hpp>

namespace [[gnu::visibility("default")]] tutti {

struct StoreServerOptions {
  std::string host{};  ///< Empty: every interface, IPv6 and IPv4.
  int port = 0;        ///< 0: a free one; port() tells which.
  /// A client that has not introduced itself by then is closed.
  std::chrono::nanoseconds handshake_timeout = std::chrono::seconds(5);
  /// Beyond these a client or a request is refused: Error resource_exhausted on its side. A client
  /// takes one descriptor; where those run out first, clients are refused from there on.
  int max_clients = 10'000;
  std::size_t max_keys = 1'000'000;
  std::size_t max_total_bytes = std::size_t{1} << 30;  ///< Keys and values together.
  Logger logger{};                                     ///< Null: default_logger().
};

/// Holds the table that make_tcp_store() connects to, with one thread of its own. What it holds is
/// gone with it. Called from any thread. docs/store.md has the protocol.
class StoreServer {
 public:
  /// Listens when it returns. @throws Error invalid_argument for a bad port or host, backend when
  /// the port is taken, resource_exhausted.
  explicit StoreServer(const StoreServerOptions& options = {});
  /// Closes all connections: the clients' calls throw Error peer_lost.
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  int port() const noexcept;
  /// How many have joined and not left. One per make_tcp_store().
  int clients() const;
  /// Blocks until every client that ever joined has left, this process's own too. False when the
  /// deadline passed first.
  bool wait_until_left(Deadline deadline);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
