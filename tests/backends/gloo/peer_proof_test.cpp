// The proof over a connection of Gloo, and the check of the connection's ends.

#include "gloo/peer_proof.hpp"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <span>
#include <stdexcept>

#include <gtest/gtest.h>

#include "gloo/sockets.hpp"
#include "store/crypto.hpp"

namespace tutti::test {
namespace {

using backend::gloo::PeerProof;
using backend::gloo::Sockets;
using internal::crypto::Digest;
using internal::crypto::Key;

PeerProof message(int from, int to, const Key& key) {
  PeerProof proof;
  proof.from = from;
  proof.to = to;
  proof.sign(key);
  return proof;
}

Digest random_key() {
  Digest bytes;
  internal::crypto::random(bytes);
  return bytes;
}

TEST(GlooPeerProof, OnlyTheRankWithTheKeyIsAccepted) {
  if (!internal::crypto::available) GTEST_SKIP() << "built without OpenSSL";
  const auto bytes = random_key();
  const Key key{std::span(bytes)};
  const auto mine = message(0, 1, key);
  const auto answer = message(1, 0, key);
  EXPECT_TRUE(mine.is_answered_by(answer, &key));
  EXPECT_FALSE(mine.is_answered_by(mine, &key)) << "reflected";
  EXPECT_FALSE(mine.is_answered_by(message(2, 0, key), &key)) << "of another rank";
  EXPECT_FALSE(mine.is_answered_by(message(1, 2, key), &key)) << "to another rank";
  const auto other = random_key();
  EXPECT_FALSE(mine.is_answered_by(message(1, 0, Key{std::span(other)}), &key));
  // The answers that a peer without the key can make of the message that it received.
  auto made = mine;
  std::swap(made.from, made.to);
  EXPECT_FALSE(mine.is_answered_by(made, &key));
  for (std::size_t bit = 0; bit < 8 * sizeof answer; ++bit) {
    auto flipped = answer;
    std::as_writable_bytes(std::span(&flipped, 1))[bit / 8] ^=
        static_cast<std::byte>(1U << bit % 8);
    EXPECT_FALSE(mine.is_answered_by(flipped, &key)) << bit;
  }
}

/// A connection over loopback, as descriptors of both ends.
struct Connected {
  Connected() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ends[0] = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (::bind(listener, generic, size) != 0 || ::listen(listener, 1) != 0 ||
        ::getsockname(listener, generic, &size) != 0 || ::connect(ends[0], generic, size) != 0)
      throw std::runtime_error("cannot connect over loopback");
    ends[1] = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    ::close(listener);
  }
  ~Connected() {
    for (const int end : ends) ::close(end);
  }
  Connected(const Connected&) = delete;
  Connected& operator=(const Connected&) = delete;
  sockaddr_storage address(std::size_t end) const {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    (void)::getsockname(ends[end], reinterpret_cast<sockaddr*>(&address), &size);
    return address;
  }
  std::array<int, 2> ends{};
};

TEST(GlooSockets, NoticeAConnectionThatEndsAtAnotherAddress) {
  const Connected good;
  const Connected relayed;
  const std::array own{good.address(0), relayed.address(0)};
  const auto direct = Sockets::find(own, std::array{good.address(1), relayed.address(1)});
  EXPECT_EQ(direct.relayed(), -1);
  // The peer names its own end, to which a relay is connected.
  const auto found = Sockets::find(own, std::array{good.address(1), good.address(1)});
  EXPECT_EQ(found.relayed(), 1);
  // A socket that is not found at all, as without /proc, says nothing.
  const std::array nowhere{sockaddr_storage{}};
  EXPECT_EQ(Sockets::find(nowhere, std::array{good.address(1)}).relayed(), -1);
}

}  // namespace
}  // namespace tutti::test
