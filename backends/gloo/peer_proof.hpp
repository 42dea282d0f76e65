#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "store/crypto.hpp"

namespace tutti::backend::gloo {

/// The first message over a connection, in both directions: ranks, and the sender's end of the
/// connection. The proof is an HMAC over these with a key that only clients of the store know. All
/// bytes are initialized.
struct PeerProof {
  std::uint64_t magic = 0x69747475742f676cU;  // "lg/tutti"
  std::int32_t from = -1;
  std::int32_t to = -1;
  sockaddr_storage end{};
  internal::crypto::Digest proof{};  ///< 0 without a key.

  void sign(const internal::crypto::Key& key) { proof = key.hmac(claims()); }

  /// True if `answer` is of the rank to which this message goes. Null key: nothing is proved.
  bool is_answered_by(const PeerProof& answer, const internal::crypto::Key* key) const {
    return answer.magic == magic && answer.from == to && answer.to == from &&
           (key == nullptr || internal::crypto::equal(answer.proof, key->hmac(answer.claims())));
  }

 private:
  std::span<const std::byte> claims() const {
    return std::as_bytes(std::span(this, 1)).first(offsetof(PeerProof, proof));
  }
};
static_assert(sizeof(PeerProof) == 16 + sizeof(sockaddr_storage) + 32, "has no padding");

}  // namespace tutti::backend::gloo
