#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <memory>
#include <span>
#include <utility>

#include "mesh/sockets.hpp"
#include "store/crypto.hpp"

namespace tutti::backend::tcp {

/// A connected, non-blocking TCP socket, in clear or under TLS 1.3 with a pre-shared key. From one
/// thread at a time.
class Channel {
 public:
  enum class Side : bool { client, server };
  enum class Handshake : unsigned char { done, waits_to_receive, waits_to_send, failed };

  Channel() noexcept;
  Channel(mesh::Socket socket) noexcept;
  ~Channel();
  Channel(Channel&&) noexcept;
  Channel& operator=(Channel&&) noexcept;

  /// False without a socket.
  explicit operator bool() const noexcept { return bool(socket_); }
  int descriptor() const noexcept { return socket_.get(); }
  void close() noexcept { *this = {}; }

  /// Encrypts all that follows. Both sides call shake_hands() until it is `done`. The server's is
  /// done when the client's is. @throws Error unsupported without OpenSSL.
  void encrypt(Side side, const internal::crypto::Digest& key);
  Handshake shake_hands() noexcept;
  bool is_encrypted() const noexcept { return tls_ != nullptr; }

  /// As sendmsg() and recvmsg(), with their errno, but an encrypted channel sends and receives at
  /// most 16 KiB, and a call after EAGAIN has to send the same bytes first. EPROTO: the peer's
  /// bytes are no TLS with this key. ENOMEM: OpenSSL has no memory.
  ssize_t send(std::span<const iovec> arrays) noexcept;
  ssize_t receive(std::span<const iovec> arrays) noexcept;

 private:
  class Tls;
  mesh::Socket socket_{};
  std::unique_ptr<Tls> tls_;
};

}  // namespace tutti::backend::tcp
