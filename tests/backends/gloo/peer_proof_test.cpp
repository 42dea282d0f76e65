// The proof over a connection of Gloo.

#include "gloo/peer_proof.hpp"

#include <array>
#include <cstddef>
#include <span>

#include <gtest/gtest.h>

#include "store/crypto.hpp"

namespace tutti::test {
namespace {

using backend::gloo::PeerProof;
using internal::crypto::Digest;

Digest random_secret() {
  Digest secret;
  internal::crypto::random(secret);
  return secret;
}

TEST(GlooPeerProof, OnlyTheRankWithTheSecretIsAccepted) {
  if (!internal::crypto::available) GTEST_SKIP() << "built without OpenSSL";
  const auto secret = random_secret();
  PeerProof mine;
  mine.end = {'[', ']'};
  mine.sign(secret, 0, 1);
  EXPECT_TRUE(mine.is_of(secret, 0, 1));
  EXPECT_FALSE(mine.is_of(secret, 1, 0)) << "reflected";
  EXPECT_FALSE(mine.is_of(secret, 2, 1)) << "of another rank";
  EXPECT_FALSE(mine.is_of(secret, 0, 2)) << "to another rank";
  EXPECT_FALSE(mine.is_of(random_secret(), 0, 1));
  for (std::size_t bit = 0; bit < 8 * sizeof mine; ++bit) {
    auto flipped = mine;
    std::as_writable_bytes(std::span(&flipped, 1))[bit / 8] ^=
        static_cast<std::byte>(1U << bit % 8);
    EXPECT_FALSE(flipped.is_of(secret, 0, 1)) << bit;
  }
}

}  // namespace
}  // namespace tutti::test
