#pragma once

#include <string>
#include <vector>

#include <sys/socket.h>

#include "backend/rendezvous.hpp"
#include "channel.hpp"
#include "mesh/sockets.hpp"
#include "store/crypto.hpp"

namespace tutti::backend::tcp {

/// A TCP socket that listens at one address of this machine, at a free port (of TUTTI_PORTS).
class Listener {
 public:
  /// @param address  numeric. @throws Error backend, resource_exhausted.
  explicit Listener(const std::string& address);
  int descriptor() const noexcept { return socket_.get(); }
  int port() const;

 private:
  mesh::Socket socket_;
};

/// The connections of this rank to one peer.
struct PeerAddress {
  std::string address;  ///< Numeric.
  int port = 0;
  int connections = 1;
};

/// Connects this rank to all others. The higher rank of a pair opens the connections. Both ends
/// prove that they know `secret` before anything else is read: each sends the HMAC of the ranks,
/// the number of the connection and the nonces of both, the rank that opens first. Peers that do
/// not are closed after 2 s, or when too many of them wait; their bytes are compared, never parsed.
/// Without OpenSSL the secret takes the place of the HMAC, which keeps out only who cannot read the
/// traffic. `encrypts`: then the connection goes on under TLS, with a key of its own from `secret`.
/// `logger` gets a warning after 10 s, and then each minute.
/// @param peers  by rank. @return by rank: the connections.
/// @throws Error timeout, whose text names the ranks that are not connected; resource_exhausted;
/// the error of a rank that has given up.
std::vector<std::vector<Channel>> connect_all(internal::Rendezvous& rendezvous,
                                              const Listener& listener, int rank,
                                              const std::vector<PeerAddress>& peers,
                                              const internal::crypto::Digest& secret, bool encrypts,
                                              const Logger& logger = default_logger());

}  // namespace tutti::backend::tcp
