#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "mesh/secret.hpp"
#include "values/bytes.hpp"

namespace tutti::backend::gloo {

/// The text of an address and port, then zeros.
using End = std::array<char, 64>;

/// The first message over a connection, in both directions.
struct PeerProof {
  End end{};  ///< The sender's end of the connection.
  internal::crypto::Digest proof{};

  void sign(const internal::crypto::Digest& secret, int from, int to) {
    proof = right(secret, from, to);
  }
  bool is_of(const internal::crypto::Digest& secret, int from, int to) const {
    return mesh::is_proof(proof, right(secret, from, to));
  }

 private:
  internal::crypto::Digest right(const internal::crypto::Digest& secret, int from, int to) const {
    internal::Writer claims;
    claims.i32(from).i32(to).raw(std::as_bytes(std::span(end)));
    return mesh::prove(secret, claims.bytes());
  }
};

}  // namespace tutti::backend::gloo
