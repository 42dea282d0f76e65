// The connections of tcp alone: their frames, also of a peer that breaks the protocol.

#include "tcp/links.hpp"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>

namespace tutti::test {
namespace {

using backend::tcp::Channel;
using backend::tcp::Frame;
using backend::tcp::Links;
using Outcome = Links::Outcome;
using namespace std::chrono_literals;

/// Two ranks over so many connections; or one, and the other ends of its connections.
struct Pair {
  explicit Pair(std::size_t connections, bool announces = false, bool raw = false,
                bool encrypted = false) {
    Links::Channels channels[2];
    for (int r : {0, 1}) channels[r].resize(2);
    for (std::size_t i = 0; i < connections; ++i) {
      int ends[2];
      EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
      channels[0][1].push_back(backend::mesh::Socket(ends[0]));
      if (raw)
        others.push_back(ends[1]);
      else
        channels[1][0].push_back(backend::mesh::Socket(ends[1]));
      if (encrypted) encrypt(channels[0][1][i], channels[1][0][i]);
    }
    for (int r : {0, 1})
      if (r == 0 || !raw)
        links[r] =
            std::make_unique<Links>(std::move(channels[r]), announces, 0ns, [this, r](int peer) {
              EXPECT_EQ(peer, 1 - r);
              ends[r] = true;
            });
  }
  ~Pair() {
    for (const int s : others) ::close(s);
  }
  static void encrypt(Channel& server, Channel& client) {
    server.encrypt(Channel::Side::server, {});
    client.encrypt(Channel::Side::client, {});
    for (int i = 0; i < 10 && client.shake_hands() != Channel::Handshake::done; ++i)
      (void)server.shake_hands();
    EXPECT_EQ(server.shake_hands(), Channel::Handshake::done);
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  std::atomic<bool> ends[2]{false, false};
  std::unique_ptr<Links> links[2];
  std::vector<int> others;
};

const std::atomic<bool> never{false};

Outcome wait(Links& links, Links::Request& request, std::chrono::milliseconds time = 10s) {
  return links.wait(request, Deadline::after(time), never);
}

std::vector<std::uint8_t> numbers(std::size_t bytes, unsigned seed = 1) {
  std::vector<std::uint8_t> data(bytes);
  std::minstd_rand random(seed);
  for (auto& x : data) x = static_cast<std::uint8_t>(random() >> 8);
  return data;
}

// Messages of all sizes, both ways at once, received in another order than they were sent in.
TEST(TcpLinks, MoveMessagesInAnyOrder) {
  for (const std::size_t connections : {1U, 2U, 4U})
    for (const auto& [announces, encrypted] :
         {std::pair{false, false}, {true, false}, {true, true}}) {
      if (encrypted && !internal::crypto::available) continue;
      Pair pair(connections, announces, false, encrypted);
      const std::vector<std::size_t> sizes{0, 1, 2047, 2048, 70'000, 131'072, 1'000'003, 3'000'000};
      const auto run = [&](int rank) {
        auto& links = *pair.links[rank];
        std::vector<std::vector<std::uint8_t>> out;
        std::vector<std::vector<std::uint8_t>> in;
        std::vector<std::unique_ptr<Links::Request>> requests;
        for (std::size_t i = 0; i < sizes.size(); ++i) {
          out.push_back(
              numbers(sizes[i], static_cast<unsigned>(10 * i) + static_cast<unsigned>(rank)));
          requests.push_back(std::make_unique<Links::Request>());
          links.send(*requests.back(), 1 - rank, i, out[i].data(), sizes[i], i % 2 == 0);
        }
        in.resize(sizes.size());
        for (std::size_t k = 0; k < sizes.size(); ++k) {
          const auto i = (5 * k + 3) % sizes.size();
          in[i].resize(sizes[i]);
          Links::Request request;
          links.recv(request, 1 - rank, i, in[i].data(), sizes[i]);
          ASSERT_EQ(wait(links, request), Outcome::ended);
          EXPECT_EQ(request.received, sizes[i]);
          EXPECT_TRUE(in[i] == numbers(sizes[i], static_cast<unsigned>(10 * i) +
                                                     static_cast<unsigned>(1 - rank)))
              << sizes[i];
        }
        for (auto& request : requests) EXPECT_EQ(wait(links, *request), Outcome::ended);
      };
      std::thread other(run, 1);
      run(0);
      other.join();
    }
}

TEST(TcpLinks, MessagesOfOneSlotComeInTheirOrder) {
  Pair pair(4);
  std::vector<std::uint8_t> large = numbers(400'000);
  std::vector<std::uint8_t> small = numbers(10, 2);
  Links::Request sent[2];
  pair.links[0]->send(sent[0], 1, 7, large.data(), large.size(), true);
  pair.links[0]->send(sent[1], 1, 7, small.data(), small.size(), true);
  for (const auto* wanted : {&large, &small}) {
    std::vector<std::uint8_t> in(wanted->size());
    Links::Request request;
    pair.links[1]->recv(request, 0, 7, in.data(), in.size());
    // The other rank's thread writes what the buffers of the kernel do not hold.
    std::thread sender([&] { (void)wait(*pair.links[0], sent[0]); });
    EXPECT_EQ(wait(*pair.links[1], request), Outcome::ended);
    sender.join();
    EXPECT_TRUE(in == *wanted);
  }
}

TEST(TcpLinks, ALargeMessageUsesAllConnections) {
  Pair pair(4, false, true);
  std::vector<std::uint8_t> data = numbers(262'144);
  Links::Request request;
  pair.links[0]->send(request, 1, 7, data.data(), data.size(), true);
  std::uint64_t sum = 0;
  for (const int s : pair.others) {
    Frame frame;
    ASSERT_EQ(::recv(s, &frame, sizeof frame, 0), static_cast<ssize_t>(sizeof frame));
    EXPECT_EQ(frame.bytes, data.size());
    EXPECT_EQ(frame.end - frame.begin, data.size() / 4);
    sum += frame.begin;
  }
  EXPECT_EQ(sum, data.size() / 4 * (0 + 1 + 2 + 3));
}

TEST(TcpLinks, AnAnnouncedSendEndsWhenItsReceiveIsThere) {
  Pair pair(2, true);
  int out = 5;
  int in = 0;
  Links::Request sent;
  pair.links[0]->send(sent, 1, 7, &out, sizeof out, true);
  EXPECT_EQ(wait(*pair.links[0], sent, 20ms), Outcome::late);
  EXPECT_TRUE(pair.links[1]->has_arrived(0, 7));
  EXPECT_FALSE(pair.links[1]->has_arrived(0, 8));
  Links::Request received;
  pair.links[1]->recv(received, 0, 7, &in, sizeof in);
  EXPECT_EQ(wait(*pair.links[0], sent), Outcome::ended);
  EXPECT_EQ(wait(*pair.links[1], received), Outcome::ended);
  EXPECT_EQ(in, 5);
}

// Withdrawn at any moment: sent, in part, announced. The next message of the slot is received.
TEST(TcpLinks, AWithdrawnMessageIsForgotten) {
  for (const std::size_t connections : {1U, 4U})
    for (const bool announces : {false, true})
      for (const std::size_t bytes : {8UL, 200'000UL, 4'000'000UL}) {
        Pair pair(connections, announces);
        auto wrong = numbers(bytes, 3);
        {
          Links::Request sent;
          pair.links[0]->send(sent, 1, 7, wrong.data(), bytes, true);
          EXPECT_TRUE(pair.links[0]->withdraw(sent));
        }
        std::ranges::fill(wrong, std::uint8_t{0});
        // It has arrived, and its end, before the receive is posted.
        Links::Request other;
        int one = 1;
        int number = 0;
        pair.links[0]->send(other, 1, 8, &one, sizeof one, true);
        std::thread sender([&] { (void)wait(*pair.links[0], other); });
        Links::Request first;
        pair.links[1]->recv(first, 0, 8, &number, sizeof number);
        EXPECT_EQ(wait(*pair.links[1], first), Outcome::ended);
        sender.join();
        auto data = numbers(16, 4);
        std::vector<std::uint8_t> in(16);
        Links::Request sent;
        Links::Request received;
        pair.links[1]->recv(received, 0, 7, in.data(), in.size());
        pair.links[0]->send(sent, 1, 7, data.data(), data.size(), true);
        std::thread again([&] { (void)wait(*pair.links[0], sent); });
        EXPECT_EQ(wait(*pair.links[1], received), Outcome::ended);
        again.join();
        EXPECT_TRUE(in == data) << connections << ' ' << announces << ' ' << bytes;
        EXPECT_EQ(pair.links[1]->unreceived(), std::nullopt);
      }
}

TEST(TcpLinks, AWithdrawnReceiveTouchesItsMemoryNoMore) {
  Pair pair(1);
  const auto data = numbers(4'000'000);
  auto in = std::make_unique<std::vector<std::uint8_t>>(data.size());
  Links::Request sent;
  pair.links[0]->send(sent, 1, 7, data.data(), data.size(), true);
  {
    Links::Request received;
    pair.links[1]->recv(received, 0, 7, in->data(), in->size());
    EXPECT_EQ(wait(*pair.links[1], received, 1ms), Outcome::late);
    EXPECT_TRUE(pair.links[1]->withdraw(received));
  }
  in.reset();
  int out = 5;
  int last = 0;
  Links::Request again;
  Links::Request received;
  pair.links[0]->send(again, 1, 8, &out, sizeof out, true);
  pair.links[1]->recv(received, 0, 8, &last, sizeof last);
  std::thread sender([&] { EXPECT_EQ(wait(*pair.links[0], again), Outcome::ended); });
  EXPECT_EQ(wait(*pair.links[1], received), Outcome::ended);
  sender.join();
  EXPECT_EQ(last, 5);
}

TEST(TcpLinks, AMessageWithoutAReceiveIsReported) {
  Pair pair(1);
  int out = 5;
  Links::Request sent;
  pair.links[0]->send(sent, 1, 7, &out, sizeof out, false);
  EXPECT_EQ(pair.links[1]->unreceived(), 0);
  EXPECT_EQ(pair.links[0]->unreceived(), std::nullopt);
}

TEST(TcpLinks, ThePeersEndEndsSendsAndReceives) {
  Pair pair(2);
  int data = 5;
  Links::Request received;
  pair.links[0]->recv(received, 1, 7, &data, sizeof data);
  pair.links[1]->close();
  EXPECT_EQ(wait(*pair.links[0], received), Outcome::lost);
  EXPECT_TRUE(pair.ends[0]);
  Links::Request sent;
  pair.links[0]->send(sent, 1, 7, &data, sizeof data, true);
  EXPECT_TRUE(sent.ended && sent.failed);
  EXPECT_TRUE(pair.links[0]->withdraw(received));
}

// Many peers: the kernel says which of them have sent something.
TEST(TcpLinks, ReadManyPeers) {
  constexpr int peers = 20;
  Links::Channels channels(peers + 1);
  std::vector<int> others;
  for (std::size_t r = 1; r <= peers; ++r) {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    channels[r].push_back(backend::mesh::Socket(ends[0]));
    others.push_back(ends[1]);
  }
  Links links(std::move(channels), false, 0ns, [](int) {});
  std::vector<Links::Request> requests(peers);
  std::vector<int> in(peers, -1);
  for (int r = 0; r < peers; ++r)
    links.recv(requests[static_cast<std::size_t>(r)], r + 1, 7, &in[static_cast<std::size_t>(r)],
               4);
  std::thread writer([&] {
    for (int r = peers - 1; r >= 0; --r) {
      const Frame frame{.slot = 7, .bytes = 4, .begin = 0, .end = 4};
      const int s = others[static_cast<std::size_t>(r)];
      EXPECT_EQ(::send(s, &frame, sizeof frame, 0), static_cast<ssize_t>(sizeof frame));
      if (r % 5 == 0) std::this_thread::sleep_for(3ms);
      EXPECT_EQ(::send(s, &r, sizeof r, 0), 4);
    }
  });
  for (auto& request : requests) EXPECT_EQ(wait(links, request), Outcome::ended);
  writer.join();
  for (int r = 0; r < peers; ++r) EXPECT_EQ(in[static_cast<std::size_t>(r)], r);
  for (const int s : others) ::close(s);
}

TEST(TcpLinks, ABrokenProtocolIsNamed) {
  for (const auto& [frame, text] : std::vector<std::pair<Frame, std::string>>{
           {{.kind = Frame::Kind{9}}, "of an unknown kind"},
           {{.bytes = 3, .begin = 0, .end = 4}, "its lengths contradict each other"},
           {{.bytes = ~0ULL, .begin = 0, .end = 4}, "its lengths contradict each other"},
           {{.number = ~0U, .bytes = 4, .end = 4}, "a part of no message"},
           {{.kind = Frame::Kind::forget}, "it withdraws a message that it has not sent"},
           {{.bytes = 1ULL << 31, .end = 1ULL << 31}, "more than 1 GiB of messages"}}) {
    Pair pair(1, false, true);
    int data = 0;
    Links::Request request;
    pair.links[0]->recv(request, 1, 7, &data, sizeof data);
    ASSERT_EQ(::send(pair.others[0], &frame, sizeof frame, 0), static_cast<ssize_t>(sizeof frame));
    EXPECT_EQ(wait(*pair.links[0], request, 20ms), Outcome::late);
    const auto fault = pair.links[0]->fault();
    ASSERT_TRUE(fault) << text;
    EXPECT_NE(fault->message().find("frame of rank 1: " + text), std::string::npos)
        << fault->message();
    (void)pair.links[0]->withdraw(request);
  }
}

TEST(TcpLinks, AMessageBeginsOnce) {
  Pair pair(1, false, true);
  int data = 0;
  Links::Request request;
  pair.links[0]->recv(request, 1, 7, &data, sizeof data);
  std::array<std::byte, 2 * sizeof(Frame) + 150> text{};
  const Frame begun{.slot = 8, .bytes = 200, .end = 50};
  const Frame announced{.kind = Frame::Kind::announce, .slot = 8, .bytes = 200};
  std::memcpy(text.data(), &begun, sizeof begun);
  std::memcpy(text.data() + sizeof begun + 50, &announced, sizeof announced);
  ASSERT_EQ(::send(pair.others[0], text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  EXPECT_EQ(wait(*pair.links[0], request, 20ms), Outcome::late);
  EXPECT_TRUE(pair.links[0]->fault());
  (void)pair.links[0]->withdraw(request);
}

/// Two connected sockets of TCP, small buffers.
std::array<int, 2> connected() {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int small = 4096;
  ::setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof at;
  EXPECT_EQ(::bind(listener, reinterpret_cast<const sockaddr*>(&at), sizeof at), 0);
  EXPECT_EQ(::listen(listener, 1), 0);
  EXPECT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&at), &length), 0);
  const int one = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(::connect(one, reinterpret_cast<const sockaddr*>(&at), sizeof at), 0);
  const int other = ::accept(listener, nullptr, nullptr);
  ::close(listener);
  for (const int s : {one, other}) ::fcntl(s, F_SETFL, O_NONBLOCK);
  return {one, other};
}

// A rank that is late does not read: its machine answers the probes of the full connection.
TEST(TcpLinks, ALatePeerKeepsItsConnection) {
  const auto ends = connected();
  Links::Channels channels(2);
  channels[1].push_back(backend::mesh::Socket(ends[0]));
  std::atomic<bool> ended{false};
  Links links(std::move(channels), false, 500ms, [&](int) { ended = true; });
  const auto data = numbers(8'000'000);
  Links::Request request;
  links.send(request, 1, 7, data.data(), data.size(), true);
  for (const auto limit = Deadline::after(2500ms); !limit.expired();) links.attend(50ms);
  EXPECT_FALSE(ended);
  EXPECT_FALSE(request.ended);
  links.close();
  ::close(ends[1]);
}

}  // namespace
}  // namespace tutti::test
