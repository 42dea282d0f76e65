// The connections of tcp while a group is made: proofs, and peers without one.

#include "tcp/connect.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <tutti/store/store.hpp>

#include "support/errors.hpp"
#include "support/ranks.hpp"
#include "support/scoped_variables.hpp"

namespace tutti::test {
namespace {

using namespace backend::tcp;
using namespace std::chrono_literals;

BackendInit init_of(const std::shared_ptr<Store>& store, int rank, int size,
                    std::chrono::nanoseconds timeout) {
  BackendInit init;
  init.store = store;
  init.rank = rank;
  init.size = size;
  init.name = "group";
  init.timeout = timeout;
  return init;
}

int connect_to(int port) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int s = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(::connect(s, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
  return s;
}

/// Two ranks with a connection each way of `connections`, and `meanwhile(port of rank 0)` beside
/// them. Returns the error of rank 0, or of rank 1, or nothing.
std::string connect_two(int connections, std::array<internal::crypto::Digest, 2> secrets,
                        const std::function<void(int port)>& meanwhile = {},
                        std::chrono::milliseconds timeout = 10s, bool encrypts = false) {
  const auto store = make_memory_store();
  const Listener listeners[2]{Listener("127.0.0.1"), Listener("127.0.0.1")};
  std::vector<PeerAddress> peers;
  for (const auto& listener : listeners)
    peers.push_back({"127.0.0.1", listener.port(), connections});
  std::string errors[2];
  std::vector<std::vector<Channel>> channels[2];
  std::atomic<bool> disturbed{!meanwhile};
  const auto run = [&](int rank) {
    try {
      internal::Rendezvous rendezvous(init_of(store, rank, 2, timeout));
      while (rank == 1 && !disturbed) std::this_thread::sleep_for(1ms);
      channels[rank] = connect_all(rendezvous, listeners[rank], rank, peers,
                                   secrets[static_cast<std::size_t>(rank)], encrypts);
    } catch (const Error& error) {
      errors[rank] = error.what();
    }
  };
  std::thread zero(run, 0);
  std::thread one(run, 1);
  if (meanwhile) meanwhile(listeners[0].port());
  disturbed = true;
  zero.join();
  one.join();
  if (errors[0].empty() && errors[1].empty())
    for (int i = 0; i < connections; ++i) {
      const auto at = static_cast<std::size_t>(i);
      int sent = i;
      int number = 0;
      const iovec from{&sent, sizeof sent};
      const iovec to{&number, sizeof number};
      EXPECT_EQ(channels[0][1][at].is_encrypted(), encrypts);
      EXPECT_EQ(channels[0][1][at].send({&from, 1}), 4);
      while (channels[1][0][at].receive({&to, 1}) < 0) std::this_thread::yield();
      EXPECT_EQ(number, i) << "another connection";
    }
  return errors[0].empty() ? errors[1] : errors[0];
}

internal::crypto::Digest secret_of(int seed) {
  internal::crypto::Digest secret;
  secret.fill(static_cast<std::byte>(seed));
  return secret;
}
const std::array<internal::crypto::Digest, 2> same{secret_of(1), secret_of(1)};

TEST(TcpListener, TakesAPortOfTheRangeAlsoWhileAConnectionHasIt) {
  const int port = Listener("127.0.0.1").port();
  const auto range = fmt::format("{}-{}", port, port);
  const ScopedVariables set{{"TUTTI_PORTS", range.c_str()}};
  std::optional<Listener> first("127.0.0.1");
  const backend::mesh::Socket client(connect_to(port));
  const backend::mesh::Socket accepted(::accept(first->descriptor(), nullptr, nullptr));
  EXPECT_TRUE(accepted);
  expect_error(Errc::resource_exhausted, {"tcp: ", "TUTTI_PORTS, " + range},
               [] { const Listener second("127.0.0.1"); });
  first.reset();
  EXPECT_EQ(Listener("127.0.0.1").port(), port);
}

TEST(TcpConnections, ConnectEveryPair) {
  for (const int connections : {1, 4})
    for (const bool encrypts : {false, true})
      if (!encrypts || internal::crypto::available) {
        EXPECT_EQ(connect_two(connections, same, {}, 10s, encrypts), "");
      }
}

TEST(TcpConnections, RefuseAnotherSecret) {
  const auto error = connect_two(1, {secret_of(1), secret_of(2)}, {}, 1s);
  EXPECT_NE(error.find("has no connection to rank"), std::string::npos) << error;
}

// An unauthenticated peer that has heard what a rank sent: the nonce of the other rank is new.
TEST(TcpConnections, RefuseAReplayedProof) {
  std::array<std::byte, 56 + 32> heard{};
  const auto record = [&](int port) {
    const std::uint64_t magic = 0x6370742f69747475U;
    const std::int32_t ranks[2]{1, 0};
    std::memcpy(heard.data(), &magic, sizeof magic);
    std::memcpy(heard.data() + 8, ranks, sizeof ranks);
    const int s = connect_to(port);
    EXPECT_EQ(::send(s, heard.data(), 56, 0), 56);
    std::array<std::byte, 32> nonce{};
    EXPECT_EQ(::recv(s, nonce.data(), nonce.size(), MSG_WAITALL), 32);
    // The rank proves nothing to a peer that has not: its nonce is all that there is to send back.
    std::memcpy(heard.data() + 56, nonce.data(), 32);
    EXPECT_EQ(::send(s, heard.data() + 56, 32, 0), 32);
    std::byte proof{};
    EXPECT_LE(::recv(s, &proof, 1, 0), 0) << "admitted";
    ::close(s);
    const int again = connect_to(port);
    EXPECT_EQ(::send(again, heard.data(), heard.size(), MSG_NOSIGNAL), 88);
    EXPECT_EQ(::recv(again, nonce.data(), nonce.size(), MSG_WAITALL), 32);
    EXPECT_LE(::recv(again, &proof, 1, 0), 0) << "admitted";
    ::close(again);
  };
  EXPECT_EQ(connect_two(1, same, record), "");
}

TEST(TcpConnections, AThousandOthersDoNotKeepARankOut) {
  std::vector<int> held;
  const auto flood = [&](int port) {
    for (int i = 0; i < 1000; ++i) {
      held.push_back(connect_to(port));
      const std::string text(static_cast<std::size_t>(i % 60), 'x');
      (void)::send(held.back(), text.data(), text.size(), MSG_NOSIGNAL);
    }
  };
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(connect_two(1, same, flood), "");
  EXPECT_LT(std::chrono::steady_clock::now() - start, 5s);
  for (const int s : held) ::close(s);
}

TEST(TcpConnections, NameTheRankThatDoesNotCome) {
  const auto store = make_memory_store();
  const Listener listener("127.0.0.1");
  int closed = 0;
  {
    const Listener other("127.0.0.1");
    closed = other.port();
  }
  internal::Rendezvous rendezvous(init_of(store, 1, 3, 300ms));
  const auto secret = secret_of(1);
  expect_error(Errc::timeout,
               {"rank 1 has no connection to rank 0 at 127.0.0.1 port ", "Connection refused",
                ", rank 2", "firewall", "TUTTI_PORTS"},
               [&] {
                 (void)connect_all(rendezvous, listener, 1,
                                   {{"127.0.0.1", closed, 1}, {}, {"127.0.0.1", 1, 1}}, secret,
                                   false);
               });
}

}  // namespace
}  // namespace tutti::test
