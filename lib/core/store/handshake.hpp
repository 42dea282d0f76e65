#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <tutti/store/store_server.hpp>
#include <tutti/store/token.hpp>

#include "store/crypto.hpp"
#include "store/protocol.hpp"

// The handshake of a TCP store, as functions over bytes: docs/store.md has the layout, and
// docs/security.md says what it proves.

namespace tutti::internal {

/// The first message of a client with a token: a Handshake, a nonce and its claims.
inline constexpr std::size_t client_hello_bytes = handshake_bytes + 32 + 32 + 16;
/// The nonce and the proof that follow a server's Handshake.
inline constexpr std::size_t server_proof_bytes = 32 + 32;

/// The client's side. @throws Error unsupported in a build without OpenSSL.
class ClientHandshake {
 public:
  explicit ClientHandshake(const StoreIdentity& identity);
  std::span<const std::byte> hello() const noexcept { return hello_; }
  /// The client's proof for the server's Handshake and proof; empty if the server has not proved
  /// that it has the token.
  std::optional<crypto::Digest> answer(std::span<const std::byte, handshake_bytes> handshake,
                                       std::span<const std::byte, server_proof_bytes> proof) const;

 private:
  StoreToken token_;
  std::array<std::byte, client_hello_bytes> hello_{};
};

/// The clients that a server admits.
class StoreAdmission {
 public:
  /// @throws Error invalid_argument, unsupported.
  explicit StoreAdmission(const StoreServerOptions& options);

 private:
  friend class ServerHandshake;
  StoreToken token_;
  std::string job_;
  crypto::Digest job_digest_{};
  std::uint32_t generation_;
  int size_;
};

/// The server's side, for one client. It has a fixed size: nothing that a client sends before its
/// proof allocates memory.
class ServerHandshake {
 public:
  enum class State : std::uint8_t {
    waiting,   ///< For more bytes of the client.
    accepted,  ///< The bytes that follow are requests.
    refused,   ///< After the reply the connection ends.
    foreign    ///< The client does not speak the protocol: the connection ends.
  };

  /// Takes the client's next bytes from the front of `bytes`. Returns the reply to send, which may
  /// be empty.
  Bytes take(std::span<const std::byte>& bytes, const StoreAdmission& admission);
  State state() const noexcept { return state_; }
  /// Why the client was refused: the end of take()'s reply.
  std::string_view refusal(std::span<const std::byte> reply) const noexcept;

 private:
  Bytes begin(const StoreAdmission& admission);
  Bytes challenge(const StoreAdmission& admission);
  Bytes judge(const StoreAdmission& admission);
  Bytes refuse(Errc code, std::string_view text);

  State state_ = State::waiting;
  std::uint8_t got_ = 0;  // Bytes of hello_ and proof_.
  std::uint8_t want_ = handshake_bytes;
  std::uint16_t refusal_bytes_ = 0;
  std::array<std::byte, client_hello_bytes> hello_{};
  crypto::Digest proof_{};
  crypto::Digest expected_{};
};

}  // namespace tutti::internal
