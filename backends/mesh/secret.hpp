#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include <tutti/store/token.hpp>

#include "backend/rendezvous.hpp"
#include "store/crypto.hpp"

namespace tutti::backend::mesh {

/// The secret of a group: random bytes that the first rank writes to the store, and in a job with a
/// token, which no rank sends, the HKDF-SHA256 of both, of the job and of the group.
/// @param backend  names its key in the store.
/// @param identity  of the store (identity_of()).
/// @throws Error unsupported if only some ranks have a token, or a tutti with OpenSSL.
internal::crypto::Digest secret_of(internal::Rendezvous& rendezvous, std::string_view backend,
                                   const StoreIdentity& identity);

/// The proof that the sender of `text` knows the secret: its HMAC. Without OpenSSL it is the
/// secret, which keeps out only who cannot read the traffic.
internal::crypto::Digest prove(const internal::crypto::Digest& secret,
                               std::span<const std::byte> text);
bool is_proof(const internal::crypto::Digest& given, const internal::crypto::Digest& right);

}  // namespace tutti::backend::mesh
