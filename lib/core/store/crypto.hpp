#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "store/crypto_config.hpp"  // Generated: HAS_OPENSSL.

#ifdef HAS_OPENSSL
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/rand.h>
#else
#include <string.h>

#include <random>
#endif

#include "values/fail.hpp"

// The functions of OpenSSL that tutti uses. A build without it has the same functions; those
// that need OpenSSL throw Error unsupported, so callers ask `available` first.

namespace tutti::internal::crypto {

using Digest = std::array<std::byte, 32>;  ///< Of SHA-256, and a key or nonce of this length.

#ifdef HAS_OPENSSL

inline constexpr bool available = true;

inline const unsigned char* in(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}
inline unsigned char* out(std::span<std::byte> bytes) {
  return reinterpret_cast<unsigned char*>(bytes.data());
}
inline void require(bool done, std::string_view what) {
  if (!done) failf(Errc::backend, "OpenSSL: {} failed", what);
}
/// Without memory at its first use, OpenSSL crashes at every later use of a context that it has not
/// made.
inline void require_context() {
  if (::OSSL_LIB_CTX_get0_global_default() == nullptr)
    failf(Errc::resource_exhausted,
          "OpenSSL found no memory when this process first used it; it works in a new process");
}

inline void random(std::span<std::byte> bytes) {
  require_context();
  require(::RAND_bytes(out(bytes), static_cast<int>(bytes.size())) == 1, "RAND_bytes");
}

inline Digest sha256(std::span<const std::byte> data) {
  require_context();
  Digest digest;
  require(
      ::EVP_Digest(data.data(), data.size(), out(digest), nullptr, ::EVP_sha256(), nullptr) == 1,
      "SHA-256");
  return digest;
}

inline Digest hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> data) {
  require_context();
  Digest digest;
  require(::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()), in(data), data.size(),
                 out(digest), nullptr) != nullptr,
          "HMAC");
  return digest;
}

/// RFC 5869.
inline void hkdf_sha256(std::span<const std::byte> secret, std::span<const std::byte> salt,
                        std::span<const std::byte> info, std::span<std::byte> key) {
  require_context();
  ::EVP_KDF* const algorithm = ::EVP_KDF_fetch(nullptr, "HKDF", nullptr);
  ::EVP_KDF_CTX* const context = algorithm == nullptr ? nullptr : ::EVP_KDF_CTX_new(algorithm);
  ::EVP_KDF_free(algorithm);
  char digest[] = "SHA256";
  const auto octets = [](const char* name, std::span<const std::byte> bytes) {
    return ::OSSL_PARAM_construct_octet_string(name, const_cast<std::byte*>(bytes.data()),
                                               bytes.size());
  };
  const std::array<OSSL_PARAM, 5> parameters{
      ::OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
      octets(OSSL_KDF_PARAM_KEY, secret), octets(OSSL_KDF_PARAM_SALT, salt),
      octets(OSSL_KDF_PARAM_INFO, info), ::OSSL_PARAM_construct_end()};
  const bool done =
      context != nullptr && ::EVP_KDF_derive(context, out(key), key.size(), parameters.data()) == 1;
  ::EVP_KDF_CTX_free(context);
  require(done, "HKDF");
}

/// Compares in a time that does not depend on the values.
inline bool equal(const Digest& a, const Digest& b) noexcept {
  return ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

inline void erase(std::span<std::byte> bytes) noexcept {
  ::OPENSSL_cleanse(bytes.data(), bytes.size());
}

#else

inline constexpr bool available = false;

[[noreturn]] inline void refuse() {
  fail(Errc::unsupported,
       "this tutti was built without OpenSSL, so it has no tokens; build it with "
       "-Dopenssl=enabled (package libssl-dev)");
}
inline void random(std::span<std::byte> bytes) {
  std::random_device device;
  for (auto& byte : bytes) byte = static_cast<std::byte>(device());
}
inline Digest sha256(std::span<const std::byte>) {
  refuse();
}
inline Digest hmac_sha256(std::span<const std::byte>, std::span<const std::byte>) {
  refuse();
}
inline void hkdf_sha256(std::span<const std::byte>, std::span<const std::byte>,
                        std::span<const std::byte>, std::span<std::byte>) {
  refuse();
}
inline bool equal(const Digest&, const Digest&) noexcept {
  return false;
}
inline void erase(std::span<std::byte> bytes) noexcept {
  ::explicit_bzero(bytes.data(), bytes.size());
}

#endif

/// A key that is erased from memory at its end.
class Key {
 public:
  /// From a secret, by HKDF-SHA256.
  Key(std::span<const std::byte> secret, std::span<const std::byte> salt,
      std::span<const std::byte> info) {
    hkdf_sha256(secret, salt, info, bytes_);
  }
  explicit Key(std::span<const std::byte, 32> bytes) {
    for (std::size_t i = 0; i < bytes_.size(); ++i) bytes_[i] = bytes[i];
  }
  ~Key() { erase(bytes_); }
  Key(const Key&) = delete;
  Key& operator=(const Key&) = delete;

  Digest hmac(std::span<const std::byte> data) const { return hmac_sha256(bytes_, data); }

 private:
  Digest bytes_{};
};

}  // namespace tutti::internal::crypto
