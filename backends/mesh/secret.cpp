#include "mesh/secret.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "values/fail.hpp"

namespace tutti::backend::mesh {

namespace crypto = internal::crypto;

crypto::Digest secret_of(internal::Rendezvous& rendezvous, std::string_view backend) {
  crypto::Digest secret;
  crypto::random(secret);
  // The first byte says what the ranks do with it.
  constexpr auto way = static_cast<std::byte>(crypto::available ? 1 : 0);
  Bytes mine(1 + secret.size(), way);
  std::ranges::copy(secret, mine.begin() + 1);
  auto chosen = rendezvous.publish_first(fmt::format("{}/secret", backend), mine);
  crypto::erase(mine);
  if (chosen.size() != mine.size() || chosen[0] != way)
    internal::failf(Errc::unsupported,
                    "{}: some ranks' tutti was built with OpenSSL and some without it; they prove "
                    "who they are in different ways",
                    backend);
  std::copy(chosen.begin() + 1, chosen.end(), secret.begin());
  crypto::erase(chosen);
  return secret;
}

crypto::Digest prove(const crypto::Digest& secret, std::span<const std::byte> text) {
  return crypto::available ? crypto::hmac_sha256(secret, text) : secret;
}

bool is_proof(const crypto::Digest& given, const crypto::Digest& right) {
  return crypto::available ? crypto::equal(given, right) : given == right;
}

}  // namespace tutti::backend::mesh
