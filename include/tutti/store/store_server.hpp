#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include <tutti/deadline.hpp>
#include <tutti/log.hpp>
#include <tutti/store/token.hpp>

namespace [[gnu::visibility("default")]] tutti {

/// Options of a StoreServer. A value type.
struct StoreServerOptions {
  /// Empty: every interface, IPv6 and IPv4, if there is a token, otherwise loopback. An address,
  /// or "*" for every interface, is listened on even without a token: then any program that reaches
  /// it can read and write the table.
  std::string host{};
  int port = 0;  ///< 0: any free port, of TUTTI_PORTS if it is set; see port().
  /// With a token the server admits only clients that prove it, and these of the following:
  StoreToken token{};
  std::string job{};             ///< The name of the job that clients must claim.
  std::uint32_t generation = 0;  ///< The number of restarts that clients must claim.
  int size = 0;                  ///< The number of ranks that clients must claim. 0: any.
  /// A connection without a complete handshake is closed after this time.
  std::chrono::nanoseconds handshake_timeout = std::chrono::seconds(5);
  /// Limits. A client or request beyond them gets Error resource_exhausted. So does a client for
  /// which no file descriptor is left (one per client).
  int max_clients = 10'000;
  std::size_t max_keys = 1'000'000;                    ///< Keys in the table.
  std::size_t max_total_bytes = std::size_t{1} << 30;  ///< Keys, values and waiting gets.
  Logger logger{};                                     ///< Empty: default_logger().
};

/// The server of make_tcp_store(), with its own thread. Keeps the table in memory; its destructor
/// discards it. Called from any thread. Logs clients that it refuses at most once a minute.
/// docs/store.md has the protocol, docs/security.md what a token protects.
class StoreServer {
 public:
  /// Listens when it returns. @throws Error invalid_argument for a bad port, host, size or
  /// max_clients, backend if the port is taken, resource_exhausted.
  explicit StoreServer(const StoreServerOptions& options = {});
  /// Closes all connections: the clients' calls throw Error peer_lost.
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  int port() const noexcept;  ///< The port on which it listens; never 0.
  /// The number of connected clients: one per make_tcp_store().
  int clients() const;
  /// Blocks until every client has left, including clients in this process. False if the deadline
  /// passes first.
  bool wait_until_left(Deadline deadline);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
