// Connections of tcp under TLS: what the network sees and changes.

#include "tcp/channel.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>
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

// Beyond the bytes that are sent with one key, to a receiver that holds up the sender.
TEST_F(TcpChannels, ChangeTheirKeys) {
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  Channel server{backend::mesh::Socket(ends[0])};
  Channel client{backend::mesh::Socket(ends[1])};
  server.encrypt(Channel::Side::server, key_of(1));
  client.encrypt(Channel::Side::client, key_of(1));
  for (int i = 0; i < 10 && client.shake_hands() != Handshake::done; ++i)
    (void)server.shake_hands();
  EXPECT_EQ(server.shake_hands(), Handshake::done);
  constexpr std::uint64_t all = (std::uint64_t{1} << 28) + 1'000'003;
  // A number of records is no multiple of the period.
  std::vector<char> text(70'001);
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * i >> 3);
  std::thread sender([&] {
    for (std::uint64_t sent = 0; sent < all;) {
      const auto at = static_cast<std::size_t>(sent % text.size());
      const iovec array{text.data() + at, std::min<std::size_t>(text.size() - at, all - sent)};
      const auto n = server.send({&array, 1});
      if (n > 0) sent += static_cast<std::uint64_t>(n);
      ASSERT_TRUE(n > 0 || errno == EAGAIN);
    }
  });
  std::vector<char> got(text.size());
  bool right = true;
  for (std::uint64_t received = 0; received < all && right;) {
    const auto at = static_cast<std::size_t>(received % text.size());
    const iovec array{got.data(), text.size() - at};
    const auto n = client.receive({&array, 1});
    if (n > 0) received += static_cast<std::uint64_t>(n);
    right = n > 0 ? std::equal(got.begin(), got.begin() + n,
                               text.begin() + static_cast<std::ptrdiff_t>(at))
                  : errno == EAGAIN;
  }
  EXPECT_TRUE(right);
  if (!right) client.close();
  sender.join();
}

}  // namespace
}  // namespace tutti::test
