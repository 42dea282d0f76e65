// Connections of tcp under TLS: what the network sees and changes.

#include "tcp/channel.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace tutti::test {
namespace {

using backend::tcp::Channel;
using Handshake = Channel::Handshake;

internal::crypto::Digest key_of(int seed) {
  internal::crypto::Digest key;
  key.fill(static_cast<std::byte>(seed));
  return key;
}

/// Two channels, and a network between them that keeps what it carries to the client.
struct Network {
  Network(int key_of_server, int key_of_client) {
    for (auto* end : {&server, &client}) {
      int ends[2];
      EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
      *end = Channel(backend::mesh::Socket(ends[0]));
      between[end == &client] = backend::mesh::Socket(ends[1]);
    }
    server.encrypt(Channel::Side::server, key_of(key_of_server));
    client.encrypt(Channel::Side::client, key_of(key_of_client));
  }

  void carry() {
    for (const int from : {0, 1}) {
      std::array<char, 65536> data{};
      const auto n = ::recv(between[from].get(), data.data(), data.size(), 0);
      if (n <= 0) continue;
      const std::string_view bytes(data.data(), static_cast<std::size_t>(n));
      if (from == 0) carried += bytes;
      if (change && from == 0) data[static_cast<std::size_t>(n) / 2] ^= 1;
      EXPECT_EQ(::send(between[1 - from].get(), data.data(), bytes.size(), MSG_NOSIGNAL), n);
    }
  }

  std::array<Handshake, 2> shake_hands() {
    std::array<Handshake, 2> states{};
    for (int i = 0; i < 10; ++i) {
      states = {client.shake_hands(), server.shake_hands()};
      carry();
    }
    return states;
  }

  Channel server, client;
  backend::mesh::Socket between[2];  // The other ends of the server's and of the client's socket.
  std::string carried;
  bool change = false;
};

class TcpChannels : public testing::Test {
 protected:
  void SetUp() override {
    if (!internal::crypto::available) GTEST_SKIP() << "built without OpenSSL";
  }
};

TEST_F(TcpChannels, ShowNothingAndNoticeAChange) {
  Network network(1, 1);
  EXPECT_EQ(network.shake_hands(), (std::array{Handshake::done, Handshake::done}));
  std::string text(10'000, 'a');
  const iovec array{text.data(), text.size()};
  std::string got(text.size(), ' ');
  const iovec place{got.data(), got.size()};
  EXPECT_EQ(network.client.receive({&place, 1}), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(network.server.send({&array, 1}), 10'000);
  network.carry();
  EXPECT_EQ(network.carried.find("aaaa"), std::string::npos);
  EXPECT_EQ(network.client.receive({&place, 1}), 10'000);
  EXPECT_TRUE(got == text);
  network.change = true;
  EXPECT_EQ(network.server.send({&array, 1}), 10'000);
  network.carry();
  EXPECT_EQ(network.client.receive({&place, 1}), -1);
  EXPECT_EQ(errno, EPROTO);
}

TEST_F(TcpChannels, RefuseAnotherKey) {
  Network network(1, 2);
  const auto states = network.shake_hands();
  EXPECT_TRUE(std::ranges::count(states, Handshake::failed) > 0);
  EXPECT_TRUE(std::ranges::count(states, Handshake::done) == 0);
}

TEST_F(TcpChannels, RefuseAServerThatChangesTheHandshake) {
  Network network(1, 1);
  network.change = true;
  EXPECT_EQ(network.shake_hands()[0], Handshake::failed);
}

// Both ways at once, beyond the bytes that are sent with one key, and neither side reads while it
// can write: with one of the numbers of records in the first turn, both change their keys when the
// sockets are full.
TEST_F(TcpChannels, ChangeTheirKeysWhileBothAreHeldUp) {
  constexpr std::uint64_t all = (std::uint64_t{1} << 26) + 1'000'003;
  std::vector<char> text(70'001);  // The number of records is no multiple of the period.
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * i >> 3);
  std::vector<char> got(text.size());
  for (int first = 1; first <= 16; ++first) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    Channel channels[2]{backend::mesh::Socket(ends[0]), backend::mesh::Socket(ends[1])};
    channels[0].encrypt(Channel::Side::server, key_of(1));
    channels[1].encrypt(Channel::Side::client, key_of(1));
    for (int i = 0; i < 10 && channels[1].shake_hands() != Handshake::done; ++i)
      (void)channels[0].shake_hands();
    EXPECT_EQ(channels[0].shake_hands(), Handshake::done);
    std::uint64_t sent[2]{};
    std::uint64_t received[2]{};
    bool moved = true;
    const auto count = [&](ssize_t n, std::uint64_t& sum) {
      EXPECT_TRUE(n > 0 || errno == EAGAIN) << errno;
      sum += n > 0 ? static_cast<std::uint64_t>(n) : 0;
      moved = moved || n > 0;
      return n > 0;
    };
    while (moved && (received[0] < all || received[1] < all)) {
      // The first turn has so many records: all that follow come at another place of a turn.
      const bool begins = received[0] == 0;
      moved = false;
      for (const int side : {0, 1})
        for (int i = 0; sent[side] < all && (i < first || !begins); ++i) {
          const auto at = static_cast<std::size_t>(sent[side] % text.size());
          const iovec array{text.data() + at,
                            std::min<std::size_t>(text.size() - at, all - sent[side])};
          if (!count(channels[side].send({&array, 1}), sent[side])) break;
        }
      for (const int side : {0, 1})
        while (received[side] < all) {
          const auto at = static_cast<std::size_t>(received[side] % text.size());
          const iovec array{got.data(), text.size() - at};
          const auto n = channels[side].receive({&array, 1});
          if (!count(n, received[side])) break;
          ASSERT_EQ(std::memcmp(got.data(), text.data() + at, static_cast<std::size_t>(n)), 0);
        }
    }
    ASSERT_TRUE(moved) << "both wait, first " << first;
  }
}

}  // namespace
}  // namespace tutti::test
