#include <malloc.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/store/store.hpp>
#include <tutti/store/store_server.hpp>
#include <tutti/store/token.hpp>

#include "store/handshake.hpp"
#include "support/errors.hpp"
#include "support/ranks.hpp"
#include "unit/store/tcp_peer.hpp"

// A server with a token, its clients, and peers that have no token. handshake_test.cpp has the
// bytes.

namespace tutti::test {
namespace {

/// The lines that a server logs.
class Lines {
 public:
  Logger logger() {
    return [this](LogLevel level, std::string_view text) {
      const std::lock_guard lock(mutex_);
      if (level <= LogLevel::warning) lines_.emplace_back(text);
    };
  }
  std::vector<std::string> all() const {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  mutable std::mutex mutex_{};
  std::vector<std::string> lines_{};
};

class StoreWithToken : public testing::Test {
 protected:
  void SetUp() override {
    if (!StoreToken::available()) GTEST_SKIP() << "built without OpenSSL";
    token_ = StoreToken::random();
  }
  StoreServerOptions options() {
    return {.host = "127.0.0.1",
            .token = token_,
            .job = "job",
            .generation = 3,
            .size = 2,
            .logger = lines_.logger()};
  }
  StoreIdentity rank(int number) const {
    return {.token = token_, .job = "job", .generation = 3, .rank = number, .size = 2};
  }
  static std::shared_ptr<Store> join(const StoreServer& server, const StoreIdentity& identity) {
    return make_tcp_store("127.0.0.1", server.port(), 10s, identity);
  }
  std::unique_ptr<TcpPeer> unauthenticated(const StoreServer& server) const {
    return std::make_unique<TcpPeer>(TcpPeer::to(server.port()));
  }

  StoreToken token_{};
  Lines lines_{};
};

TEST_F(StoreWithToken, ServesRanksAndLaunchersThatProveIt) {
  StoreServer server(options());
  const auto first = join(server, rank(0));
  const auto second = open_store("tcp://127.0.0.1:" + std::to_string(server.port()), 10s, rank(1));
  const auto launcher = join(server, {.token = token_, .job = "job", .generation = 3});
  first->set("key", "value");
  EXPECT_EQ(second->get_text("key", 1s), "value");
  EXPECT_EQ(launcher->get_text("key", 1s), "value");
  EXPECT_EQ(server.clients(), 3);
  EXPECT_TRUE(lines_.all().empty());
}

TEST_F(StoreWithToken, RefusesOthersByNameAtOnce) {
  StoreServer server(options());
  const auto store = join(server, rank(0));
  auto other = rank(1);
  const auto refused = [&](Errc code, const std::vector<std::string>& texts) {
    expect_error(code, texts, [&] { (void)join(server, other); });
  };
  other.token = StoreToken::random();
  refused(Errc::mismatch, {"another token", "TUTTI_TOKEN_FILE"});
  other = rank(1);
  other.job = "another";
  refused(Errc::mismatch, {"belongs to job 'job'"});
  other = rank(1);
  other.generation = 2;
  refused(Errc::mismatch, {"generation 3 of the job, the client to 2"});
  other = rank(1);
  other.size = 3;
  refused(Errc::mismatch, {"2 ranks, the client is rank 1 of 3"});
  other = {};
  refused(Errc::invalid_argument, {"needs a token", "TUTTI_TOKEN_FILE"});
  EXPECT_EQ(server.clients(), 1);
  StoreServer open({.host = "127.0.0.1"});
  expect_error(Errc::invalid_argument, {"the client has a token, and the store has none"},
               [&] { (void)join(open, rank(1)); });
}

TEST_F(StoreWithToken, AClientTellsAServerWithoutTheTokenNothing) {
  // A program in the place of the server, which accepts every client, or sends a proof of its own.
  for (const std::uint32_t bytes : {0U, 64U}) {
    Bytes got;
    const TcpScript server([&](TcpPeer& peer, int) {
      got = peer.read(internal::client_hello_bytes);
      peer.send(internal::encode_handshake(internal::server_magic, {.bytes = bytes}));
      peer.send(Bytes(bytes, std::byte{7}));
      EXPECT_EQ(peer.read_to_end(), "") << "a proof, or a request";
    });
    expect_error(Errc::mismatch, {bytes == 0 ? "0 bytes of proof" : "another token"},
                 [&] { (void)make_tcp_store("127.0.0.1", server.port(), 10s, rank(1)); });
    const std::string text(reinterpret_cast<const char*>(got.data()), got.size());
    EXPECT_EQ(text.find(token_.text()), std::string::npos);
  }
}

// A peer that begins without a token, writes a key before the handshake has ended, or sends
// a request in place of the proof.
TEST_F(StoreWithToken, AnUnauthenticatedPeerReadsAndWritesNoKey) {
  StoreServer server(options());
  const auto store = join(server, rank(0));
  store->set("secret", "value of the job");
  const auto request =
      internal::encode_request({.verb = internal::Verb::try_get, .id = 1, .key = "secret"});
  const auto write = internal::encode_request(
      {.verb = internal::Verb::set, .id = 2, .key = "planted", .value = request});
  const internal::ClientHandshake wrong(
      {.token = StoreToken::random(), .job = "job", .generation = 3, .rank = 1, .size = 2});
  const auto plain = internal::encode_handshake(internal::client_magic, {});
  for (const std::span<const std::byte> hello :
       {std::span<const std::byte>(plain), wrong.hello()}) {
    auto peer = unauthenticated(server);
    peer->send(hello);
    try {
      peer->send(write);
      peer->send(request);
    } catch (const std::runtime_error&) {  // The server has closed the connection.
    }
    const auto told = peer->read_to_end();
    EXPECT_EQ(told.find("value of the job"), std::string::npos);
  }
  EXPECT_EQ(store->try_get("planted"), std::nullopt);
  EXPECT_EQ(server.clients(), 1);
}

TEST_F(StoreWithToken, LogsOneLineForManyUnauthenticatedPeers) {
  StoreServer server(options());
  const internal::ClientHandshake wrong({.token = StoreToken::random(), .rank = 1, .size = 2});
  const std::vector<Bytes> says{{std::byte{'x'}},
                                internal::encode_handshake(internal::client_magic, {}),
                                internal::encode_handshake(internal::client_magic, {.version = 1})};
  for (int i = 0; i < 200; ++i) {
    auto peer = unauthenticated(server);
    peer->send(says[static_cast<std::size_t>(i) % says.size()]);
    EXPECT_TRUE(peer->closed_within(3s));
  }
  ASSERT_EQ(lines_.all().size(), 1U);
  EXPECT_NE(lines_.all()[0].find("not admitted"), std::string::npos) << lines_.all()[0];
}

/// Checks that `count` connections, in every state before the proof, take at most 4 KiB each.
void expect_bounded_memory(const StoreServerOptions& options, const StoreIdentity& identity,
                           int count) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const auto before_limit = limit;
  limit.rlim_cur = std::max<rlim_t>(limit.rlim_cur, static_cast<rlim_t>(2 * count + 100));
  if (limit.rlim_cur > limit.rlim_max || ::setrlimit(RLIMIT_NOFILE, &limit) != 0)
    GTEST_SKIP() << "needs " << 2 * count << " descriptors";
  {
    StoreServer server(options);
    const auto store = make_tcp_store("127.0.0.1", server.port(), 10s, identity);
    std::vector<TcpPeer> peers;
    peers.reserve(static_cast<std::size_t>(count));
    const auto before = ::mallinfo2().uordblks + ::mallinfo2().hblkhd;
    const internal::ClientHandshake client(identity);
    for (int i = 0; i < count; ++i) {
      peers.push_back(TcpPeer::to(server.port()));
      if (i % 3 == 1) peers.back().send(client.hello().first(95));
      if (i % 3 == 2) peers.back().send(client.hello());
    }
    // The server answers in the order of arrival; the last answer is the end.
    for (std::size_t i = 2; i < peers.size(); i += 3)
      (void)peers[i].read(internal::handshake_bytes + internal::server_proof_bytes);
    store->set("key", "value");
    const auto after = ::mallinfo2().uordblks + ::mallinfo2().hblkhd;
    EXPECT_LT((after - before) / static_cast<std::size_t>(count), 4096U);
    EXPECT_EQ(server.clients(), 1);
    EXPECT_EQ(make_tcp_store("127.0.0.1", server.port(), 10s, identity)->get_text("key", 1s),
              "value");
  }
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_limit), 0);
}

TEST_F(StoreWithToken, ManyUnauthenticatedPeersTakeBoundedMemory) {
  auto patient = options();
  patient.handshake_timeout = 60s;
  expect_bounded_memory(patient, rank(1), 400);
}

TEST_F(StoreWithToken, ASlowHandshakeEndsAtTheTimeLimit) {
  auto impatient = options();
  impatient.handshake_timeout = 100ms;
  StoreServer server(impatient);
  auto peer = unauthenticated(server);
  const internal::ClientHandshake client(rank(1));
  peer->send(client.hello());
  (void)peer->read(internal::handshake_bytes + internal::server_proof_bytes);
  EXPECT_TRUE(peer->closed_within(3s)) << "began, and proved nothing";
}

/// True if something accepts a connection at this address of the loopback network. 127.0.0.2 stands
/// for any other address of this host.
bool accepts(std::uint32_t address, int port) {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(address);
  to.sin_port = htons(static_cast<std::uint16_t>(port));
  const bool connected =
      ::connect(descriptor, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0;
  ::close(descriptor);
  return connected;
}

TEST_F(StoreWithToken, ListensOnEveryInterfaceAndWithoutItOnlyOnLoopback) {
  constexpr std::uint32_t other = INADDR_LOOPBACK + 1;
  const StoreServer alone;
  EXPECT_TRUE(accepts(INADDR_LOOPBACK, alone.port()));
  EXPECT_FALSE(accepts(other, alone.port()));
  const StoreServer with_token({.token = token_});
  EXPECT_TRUE(accepts(other, with_token.port()));
  const StoreServer asked({.host = "*"});
  EXPECT_TRUE(accepts(other, asked.port()));
}

}  // namespace
}  // namespace tutti::test
