#include "mesh/secret.hpp"

#include <algorithm>
#include <cstdint>

#include <fmt/format.h>

#include "values/bytes.hpp"
#include "values/fail.hpp"

namespace tutti::backend::mesh {

namespace crypto = internal::crypto;

crypto::Digest secret_of(internal::Rendezvous& rendezvous, std::string_view backend,
                         const StoreIdentity& identity) {
  const auto& token = identity.token;
  crypto::Digest secret;
  crypto::random(secret);
  // The first byte says what the ranks do with it.
  const std::byte way{static_cast<std::uint8_t>(token ? 2 : crypto::available ? 1 : 0)};
  Bytes mine(1 + secret.size(), way);
  std::ranges::copy(secret, mine.begin() + 1);
  auto chosen = rendezvous.publish_first(fmt::format("{}/secret", backend), mine);
  crypto::erase(mine);
  if (chosen.size() != mine.size() || chosen[0] != way)
    internal::failf(Errc::unsupported,
                    "{}: the ranks prove who they are in different ways: some have a token or a "
                    "tutti with OpenSSL, and some have not; set TUTTI_TOKEN_FILE on all or on none",
                    backend);
  std::copy(chosen.begin() + 1, chosen.end(), secret.begin());
  crypto::erase(chosen);
  if (token) {
    internal::Writer info;
    info.text("tutti group").text(backend).text(identity.job).u32(identity.generation);
    info.text(rendezvous.names().group());
    crypto::hkdf_sha256(std::as_bytes(std::span(token.text())), Bytes(secret.begin(), secret.end()),
                        info.bytes(), secret);
  }
  return secret;
}

crypto::Digest prove(const crypto::Digest& secret, std::span<const std::byte> text) {
  return crypto::available ? crypto::hmac_sha256(secret, text) : secret;
}

bool is_proof(const crypto::Digest& given, const crypto::Digest& right) {
  return crypto::available ? crypto::equal(given, right) : given == right;
}

}  // namespace tutti::backend::mesh
