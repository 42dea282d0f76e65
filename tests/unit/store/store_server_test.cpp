#include <tutti/store/store_server.hpp>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/store/store.hpp>

#include "store/protocol.hpp"
#include "support/errors.hpp"
#include "support/ranks.hpp"
#include "support/scoped_variables.hpp"
#include "unit/store/tcp_peer.hpp"

// The server with clients that break every rule, beside clients that must not be affected.

namespace tutti::test {
namespace {

using internal::Outcome;
using internal::Request;
using internal::Verb;
using Clock = std::chrono::steady_clock;

StoreServerOptions on_loopback() {
  return {.host = "127.0.0.1"};
}
std::shared_ptr<Store> join(const StoreServer& server, std::chrono::nanoseconds timeout = 10s) {
  return make_tcp_store("127.0.0.1", server.port(), timeout);
}
std::span<const std::byte> bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}
std::string text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
template <typename T>
T number_at(std::span<const std::byte> bytes, std::size_t at) {
  T number = 0;
  for (std::size_t i = sizeof(T); i-- > 0;)
    number = static_cast<T>(number << 8 | std::to_integer<T>(bytes[at + i]));
  return number;
}

/// A client that sends frames.
struct RawClient {
  struct Answer {
    std::uint64_t id = 0;
    Outcome outcome{};
    Errc code{};
    std::string body{};
  };

  explicit RawClient(const StoreServer& server) : peer(TcpPeer::to(server.port())) {
    peer.send(internal::encode_handshake(internal::client_magic, {}));
    const auto welcome = peer.read(internal::handshake_bytes);
    EXPECT_TRUE(internal::may_be_handshake(internal::server_magic, welcome));
    EXPECT_EQ(internal::decode_handshake(welcome).kind, 0);
  }
  void ask(const Request& request) { peer.send(internal::encode_request(request)); }
  Answer answer() {
    const auto head = peer.read(internal::frame_header_bytes);
    const auto body = peer.read(number_at<std::uint32_t>(head, 0));
    return {.id = number_at<std::uint64_t>(head, 8),
            .outcome = static_cast<Outcome>(head[4]),
            .code = static_cast<Errc>(head[5]),
            .body = text(body)};
  }
  TcpPeer peer;
};

/// Descriptors of a client: its connection and three of its Asio.
constexpr int client_descriptors = 4;

/// Limits the descriptors of this process to this many, or to fewer than are open.
class DescriptorLimit {
 public:
  DescriptorLimit() { (void)::getrlimit(RLIMIT_NOFILE, &before_); }
  ~DescriptorLimit() { (void)::setrlimit(RLIMIT_NOFILE, &before_); }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;
  bool raise_to(rlim_t wanted) const {
    if (before_.rlim_cur >= wanted) return true;
    const rlimit more{.rlim_cur = wanted, .rlim_max = before_.rlim_max};
    return wanted <= before_.rlim_max && ::setrlimit(RLIMIT_NOFILE, &more) == 0;
  }
  /// Allows `count` more descriptors.
  void leave(int count) const {
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0);
    std::vector<int> open;
    for (int i = 0; i < count; ++i) open.push_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    const rlimit few{.rlim_cur = static_cast<rlim_t>(open.back()) + 1,
                     .rlim_max = before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    for (const int descriptor : open) ::close(descriptor);
  }

 private:
  rlimit before_{};
};

// --- Addresses to listen on

TEST(StoreServer, AFreePortIsOneOfTheRange) {
  const ScopedVariables some{{"TUTTI_PORTS", "29300-29399"}};
  for (const char* host : {"", "*", "127.0.0.1", "localhost"}) {
    const StoreServer server({.host = host});
    EXPECT_GE(server.port(), 29300);
    EXPECT_LE(server.port(), 29399);
    const auto port = std::to_string(server.port());
    const ScopedVariables one{{"TUTTI_PORTS", (port + "-" + port).c_str()}};
    expect_error(Errc::resource_exhausted, {"TUTTI_PORTS, " + port},
                 [&] { StoreServer second({.host = host}); });
  }
}

TEST(StoreServer, ServesTheHostThatItIsTold) {
  for (const auto* host : {"127.0.0.1", "::1", "localhost"}) {
    StoreServer server({.host = host});
    make_tcp_store(host, server.port(), 5s)->set("key", "value");
  }
}

TEST(StoreServer, RefusesWhatItCannotListenOn) {
  const StoreServer first(on_loopback());
  expect_error(Errc::backend, {"127.0.0.1:" + std::to_string(first.port()), "in use"},
               [&] { StoreServer second({.host = "127.0.0.1", .port = first.port()}); });
  expect_error(Errc::backend, {std::to_string(first.port()), "in use"},
               [&] { StoreServer second({.port = first.port()}); });
  for (const int port : {-1, 65536})
    expect_error(Errc::invalid_argument, {std::to_string(port)},
                 [&] { StoreServer server({.port = port}); });
  for (const auto* host : {"192.0.2.1", "no-such-host.invalid"})  // 192.0.2.0/24 is for documents.
    expect_error(Errc::invalid_argument, {host}, [&] { StoreServer server({.host = host}); });
  expect_error(Errc::invalid_argument, {"max_clients is 0"},
               [] { StoreServer server({.max_clients = 0}); });
}

TEST(StoreServer, KnowsTheClientsAndWaitsUntilAllHaveLeft) {
  StoreServer server(on_loopback());
  EXPECT_TRUE(server.wait_until_left(0s)) << "no client has joined yet";
  auto one = join(server);
  auto other = join(server);
  const auto unauthenticated_peer = TcpPeer::to(server.port());
  EXPECT_EQ(server.clients(), 2);
  EXPECT_FALSE(server.wait_until_left(20ms));
  one.reset();
  EXPECT_FALSE(server.wait_until_left(20ms));
  std::thread last([&] { other.reset(); });
  EXPECT_TRUE(server.wait_until_left(10s));
  EXPECT_EQ(server.clients(), 0);
  last.join();
}

// --- Clients without a handshake

TEST(StoreServer, ClosesGarbageAtOnce) {
  StoreServer server(on_loopback());
  for (const auto* garbage :
       {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "x", "\xd9tuttiX", "\xd9tuttiS\n"}) {
    auto peer = TcpPeer::to(server.port());
    peer.send(garbage);
    EXPECT_TRUE(peer.closed_within(3s)) << garbage;
  }
  EXPECT_EQ(server.clients(), 0);
}

TEST(StoreServer, ClosesASilentAndASlowClientAtTheDeadline) {
  auto options = on_loopback();
  options.handshake_timeout = 150ms;
  StoreServer server(options);
  const auto before = Clock::now();
  auto silent = TcpPeer::to(server.port());
  auto slow = TcpPeer::to(server.port());
  const auto hello = internal::encode_handshake(internal::client_magic, {});
  bool closed = false;
  for (std::size_t i = 0; i + 1 < hello.size() && !closed; ++i) {
    try {
      slow.send(std::span(hello).subspan(i, 1));
      closed = slow.closed_within(30ms);
    } catch (const std::runtime_error&) {
      closed = true;
    }
  }
  EXPECT_TRUE(closed) << "a byte at a time kept it open";
  EXPECT_TRUE(silent.closed_within(3s));
  EXPECT_GE(Clock::now() - before, 150ms);
}

TEST(StoreServer, KeepsAClientThatIntroducedItselfAndIsSilentAfterwards) {
  auto options = on_loopback();
  options.handshake_timeout = 50ms;
  StoreServer server(options);
  RawClient client(server);
  EXPECT_FALSE(client.peer.closed_within(150ms));
  client.ask({.verb = Verb::add, .id = 1, .key = "key", .number = 5});
  EXPECT_EQ(client.answer().body, "5");
}

TEST(StoreServer, RefusesAnotherVersionAndCredentialsByAMessage) {
  StoreServer server(on_loopback());
  const auto refused = [&](internal::Handshake handshake, const std::string& why) {
    auto peer = TcpPeer::to(server.port());
    peer.send(internal::encode_handshake(internal::client_magic, handshake));
    const auto output = peer.read_to_end();
    ASSERT_GE(output.size(), internal::handshake_bytes);
    const auto head = bytes(output).first(internal::handshake_bytes);
    ASSERT_TRUE(internal::may_be_handshake(internal::server_magic, head));
    EXPECT_EQ(internal::decode_handshake(head).kind, 1 + static_cast<int>(Errc::unsupported));
    EXPECT_NE(output.find(why), std::string::npos) << output;
  };
  refused({.version = 7}, "version 2 of the store protocol, the client speaks version 7");
  refused({.version = 1}, "the client speaks version 1");
  refused({.kind = 3, .bytes = 4000}, "credentials of kind 3");
  refused({.bytes = 0xffffffff}, "credentials");
  EXPECT_EQ(server.clients(), 0);
}

// --- Requests that break the rules

TEST(StoreServer, RefusesALengthThatCannotBeWithoutKeepingAnythingForIt) {
  StoreServer server(on_loopback());
  for (const std::size_t length : {std::size_t{0xffffffff}, internal::max_request_bytes + 1}) {
    RawClient client(server);
    client.peer.send(internal::encode_frame_header({.kind = 1, .id = 9}, length));
    const auto answer = client.answer();
    EXPECT_EQ(answer.outcome, Outcome::error);
    EXPECT_EQ(answer.code, Errc::invalid_argument);
    EXPECT_NE(answer.body.find(std::to_string(length)), std::string::npos) << answer.body;
    EXPECT_TRUE(client.peer.closed_within(3s));
  }
}

TEST(StoreServer, RefusesKeysAndValuesOverTheLimitAndGoesOn) {
  StoreServer server(on_loopback());
  RawClient client(server);
  const std::string long_key(Store::max_key_bytes + 1, 'k');
  const std::string long_value(Store::max_value_bytes + 1, 'v');
  client.ask({.verb = Verb::set, .id = 1, .key = long_key, .value = bytes("v")});
  client.ask({.verb = Verb::set, .id = 2, .key = "", .value = bytes("v")});
  client.ask({.verb = Verb::set, .id = 3, .key = "key", .value = bytes(long_value)});
  client.ask({.verb = Verb::add, .id = 4, .key = "key", .number = 4});
  for (const auto* why : {"1025", "empty", "8388609"}) {
    const auto answer = client.answer();
    EXPECT_EQ(answer.code, Errc::invalid_argument);
    EXPECT_NE(answer.body.find(why), std::string::npos) << answer.body;
  }
  EXPECT_EQ(client.answer().body, "4");
}

TEST(StoreServer, UnderstandsARequestThatComesByteByByte) {
  StoreServer server(on_loopback());
  RawClient client(server);
  const auto frame =
      internal::encode_request({.verb = Verb::set, .id = 1, .key = "key", .value = bytes("value")});
  for (const auto byte : frame) client.peer.send(std::span(&byte, 1));
  EXPECT_EQ(client.answer().id, 1U);
  EXPECT_EQ(join(server)->get_text("key", 0s), "value");
}

TEST(StoreServer, AnswersManyRequestsOfOnePacketInTheirOrder) {
  StoreServer server(on_loopback());
  RawClient client(server);
  Bytes packet;
  for (std::uint64_t id = 1; id <= 500; ++id) {
    const auto frame =
        internal::encode_request({.verb = Verb::add, .id = id, .key = "key", .number = 2});
    packet.insert(packet.end(), frame.begin(), frame.end());
  }
  client.peer.send(packet);
  for (std::uint64_t id = 1; id <= 500; ++id) {
    const auto answer = client.answer();
    ASSERT_EQ(answer.id, id);
    ASSERT_EQ(answer.body, std::to_string(2 * id));
  }
}

TEST(StoreServer, RefusesTheSameRequestNumberWhileItWaits) {
  StoreServer server(on_loopback());
  RawClient client(server);
  client.ask({.verb = Verb::get, .id = 5, .key = "late", .number = 10'000'000'000});
  client.ask({.verb = Verb::get, .id = 5, .key = "late", .number = 10'000'000'000});
  EXPECT_EQ(client.answer().code, Errc::invalid_argument);
  client.ask({.verb = Verb::set, .id = 6, .key = "late", .value = bytes("here")});
  EXPECT_EQ(client.answer().id, 6U);
  EXPECT_EQ(client.answer().body, "here");
}

// --- Limits

TEST(StoreServer, RefusesKeysBeyondItsLimit) {
  auto options = on_loopback();
  options.max_keys = 3;
  StoreServer server(options);
  const auto store = join(server);
  for (const auto* key : {"a", "b", "c"}) store->set(key, "value");
  expect_error(Errc::resource_exhausted, {"'d'", "3"}, [&] { store->set("d", "value"); });
  expect_error(Errc::resource_exhausted, {"'d'"}, [&] { store->add("d", 1); });
  expect_error(Errc::resource_exhausted, {"'d'"},
               [&] { store->compare_set("d", {}, bytes("value")); });
  store->set("a", "replaced");
  EXPECT_TRUE(store->erase("b"));
  store->set("d", "value");
  EXPECT_EQ(store->try_get("b"), std::nullopt);
}

TEST(StoreServer, RefusesBytesBeyondItsLimitAndCountsWhatLeaves) {
  auto options = on_loopback();
  options.max_total_bytes = 10'000;
  StoreServer server(options);
  const auto store = join(server);
  const std::string half(4990, 'v');
  for (int round = 0; round < 50; ++round) {
    store->set("key/one", half);
    store->set("key/two", half);
    expect_error(Errc::resource_exhausted, {"'key/3'", "10000"},
                 [&] { store->set("key/3", "ten bytes!"); });
    store->set("key/two", half);  // It replaces itself.
    expect_error(Errc::resource_exhausted, {"'key/two'"},
                 [&] { store->set("key/two", half + half); });
    EXPECT_EQ(store->get_text("key/two", 0s), half) << "a refusal changes nothing";
    EXPECT_TRUE(store->erase("key/one"));
    store->set("key/3", "ten bytes!");
    EXPECT_TRUE(store->erase("key/3"));
  }
}

TEST(StoreServer, CountsGetsThatWaitAndLetsGoOfThemWithTheirClient) {
  auto options = on_loopback();
  options.max_total_bytes = 10'000;
  StoreServer server(options);
  std::optional<RawClient> client(std::in_place, server);
  for (std::uint64_t id = 1; id <= 100; ++id)
    client->ask({.verb = Verb::get, .id = id, .key = "late", .number = 60'000'000'000});
  const auto answer = client->answer();  // Of the first request beyond the limit.
  EXPECT_EQ(answer.code, Errc::resource_exhausted);
  EXPECT_LT(answer.id, 100U);
  client.reset();
  EXPECT_TRUE(server.wait_until_left(5s));
  join(server)->set("key", std::string(9'900, 'v'));
}

TEST(StoreServer, RefusesRequestsOnTheirWayBeyondItsLimitAndGoesOn) {
  auto options = on_loopback();
  options.max_total_bytes = 1 << 20;
  StoreServer server(options);
  const auto store = join(server);
  expect_error(Errc::resource_exhausted, {std::to_string(1 << 20)},
               [&] { store->set("large", std::string(Store::max_value_bytes, 'v')); });
  store->set("small", "value");
  EXPECT_EQ(store->get_text("small", 0s), "value");
}

TEST(StoreServer, RefusesClientsBeyondItsLimitByAMessage) {
  auto options = on_loopback();
  options.max_clients = 2;
  options.logger = [](LogLevel, std::string_view) {};
  StoreServer server(options);
  auto one = join(server);
  const auto other = join(server);
  expect_error(Errc::resource_exhausted, {std::to_string(server.port()), "2 clients"},
               [&] { (void)join(server, 400ms); });
  one.reset();
  join(server)->set("key", "value");
}

TEST(StoreServer, AnUnauthenticatedPeerDoesNotTakeTheSlotOfAClient) {
  auto options = on_loopback();
  options.max_clients = 4;
  StoreServer server(options);
  std::vector<TcpPeer> unauthenticated_peers;
  for (int i = 0; i < 40; ++i) unauthenticated_peers.push_back(TcpPeer::to(server.port()));
  std::vector<std::shared_ptr<Store>> ranks;
  for (int i = 0; i < 4; ++i) {
    ranks.push_back(join(server, 3s));
    ranks.back()->add("ranks", 1);
  }
  EXPECT_EQ(ranks[0]->add("ranks", 0), 4);
}

TEST(StoreServer, WithoutDescriptorsRefusesByAMessageAndDoesNotSpin) {
  const DescriptorLimit limit;
  auto options = on_loopback();
  std::atomic<int> warnings = 0;
  options.logger = [&](LogLevel level, std::string_view) {
    if (level == LogLevel::warning) ++warnings;
  };
  StoreServer server(options);
  const auto store = join(server);
  const auto used_before = std::clock();
  limit.leave(client_descriptors);
  expect_error(Errc::resource_exhausted, {"descriptor", "ulimit -n"},
               [&] { (void)join(server, 300ms); });
  EXPECT_LT(static_cast<double>(std::clock() - used_before) / CLOCKS_PER_SEC, 0.2);
  EXPECT_GE(warnings, 1);
  EXPECT_LE(warnings, 3);
  store->set("key", "value");  // Who is there is served.
  limit.leave(client_descriptors + 1);
  EXPECT_EQ(join(server)->get_text("key", 1s), "value");
}

// --- Clients that do not read

TEST(StoreServer, StopsReadingFromAClientThatDoesNotRead) {
  StoreServer server(on_loopback());
  const auto store = join(server);
  store->set("large", std::string(Store::max_value_bytes, 'v'));
  RawClient deaf(server);
  Bytes requests;
  for (std::uint64_t id = 1; id <= 1000; ++id) {
    const auto frame = internal::encode_request({.verb = Verb::try_get, .id = id, .key = "large"});
    requests.insert(requests.end(), frame.begin(), frame.end());
  }
  // The bytes that two kernels buffer, and no more, for any number of requests.
  std::size_t taken = 0;
  for (int idle = 0; idle < 20 && taken < (std::size_t{256} << 20);) {
    const auto n = deaf.peer.send_some(requests);
    taken += n;
    idle = n == 0 ? idle + 1 : 0;
    store->add("counter", 1);
  }
  EXPECT_LT(taken, std::size_t{256} << 20);
  EXPECT_GE(store->add("counter", 0), 20);
}

TEST(StoreServer, GoesOnWithAClientThatReadsLate) {
  StoreServer server(on_loopback());
  const std::string value(std::size_t{1} << 20, 'v');
  join(server)->set("large", value);
  RawClient late(server);
  for (std::uint64_t id = 1; id <= 60; ++id)
    late.ask({.verb = Verb::try_get, .id = id, .key = "large"});
  for (std::uint64_t id = 1; id <= 60; ++id) {
    const auto answer = late.answer();
    ASSERT_EQ(answer.id, id);
    ASSERT_EQ(answer.body, value);
  }
}

TEST(StoreServer, ClosesAClientThatEndsItsSide) {
  StoreServer server(on_loopback());
  RawClient client(server);
  client.peer.end_of_sending();
  EXPECT_TRUE(client.peer.closed_within(3s));
  EXPECT_TRUE(server.wait_until_left(3s));
}

// --- Many

/// Clients of every bad kind, connected during its lifetime.
class BadClients {
 public:
  BadClients(const StoreServer& server, int of_each) {
    const auto hello = internal::encode_handshake(internal::client_magic, {});
    for (int i = 0; i < of_each; ++i) {
      peers_.push_back(TcpPeer::to(server.port()));  // Sends nothing.
      peers_.push_back(TcpPeer::to(server.port()));  // Stops in the middle of its handshake.
      peers_.back().send(std::span(hello).first(9));
      peers_.push_back(TcpPeer::to(server.port()));  // Garbage.
      peers_.back().send("\x16\x03\x01 hello, is this a mail server?");
      // Half-open: joined, announced a large value, and sent nothing more.
      RawClient half(server);
      half.peer.send(internal::encode_frame_header({.kind = 1, .id = 1}, Store::max_value_bytes));
      half.peer.send("the beginning");
      peers_.push_back(std::move(half.peer));
    }
  }

 private:
  std::vector<TcpPeer> peers_;
};

TEST(StoreServer, TwoThousandClientsMeetBesideOnesThatBreakTheRules) {
  const DescriptorLimit limit;
  constexpr int ranks = 2000;
  constexpr int bad = 50;
  if (!limit.raise_to(2 * ranks + 8 * bad + 200))
    GTEST_SKIP() << "the limit of descriptors of this process cannot be raised";
  StoreServer server(on_loopback());
  const BadClients beside(server, bad);

  std::vector<RawClient> clients;
  clients.reserve(ranks);
  std::chrono::nanoseconds slowest{};
  for (int i = 0; i < ranks; ++i) {
    const auto before = Clock::now();
    clients.emplace_back(server);
    slowest = std::max<std::chrono::nanoseconds>(slowest, Clock::now() - before);
  }
  EXPECT_LT(slowest, 1s) << "a rank joins within a second";
  EXPECT_EQ(server.clients(), ranks + bad);

  // Every client counts itself and waits for the same key.
  const auto before = Clock::now();
  for (auto& client : clients) {
    client.ask({.verb = Verb::add, .id = 1, .key = "ranks", .number = 1});
    client.ask({.verb = Verb::get, .id = 2, .key = "go", .number = 60'000'000'000});
  }
  for (auto& client : clients) ASSERT_EQ(client.answer().id, 1U);
  const auto last = join(server);
  EXPECT_EQ(last->add("ranks", 0), ranks);
  last->set("go", "went");
  for (auto& client : clients) ASSERT_EQ(client.answer().body, "went");
  EXPECT_LT(Clock::now() - before, 5s);
}

TEST(StoreServer, APortScanDelaysNoRank) {
  StoreServer server(on_loopback());
  std::atomic<bool> stop = false;
  std::atomic<int> scanned = 0;
  std::thread scanner([&] {
    while (!stop) {
      auto peer = TcpPeer::to(server.port());
      peer.reset_on_close();
      if (++scanned % 3 == 0) peer.send("\r\n");
    }
  });
  while (scanned < 100) std::this_thread::yield();
  for (int round = 0; round < 5; ++round) {
    on_threads(4, [&](int rank) {
      const auto before = Clock::now();
      const auto store = join(server);
      const auto prefix = std::to_string(round) + "/";
      store->set(prefix + std::to_string(rank), "here");
      for (int other = 0; other < 4; ++other)
        EXPECT_EQ(store->get_text(prefix + std::to_string(other), 10s), "here");
      EXPECT_LT(Clock::now() - before, 1s) << "after " << scanned << " scans";
    });
  }
  stop = true;
  scanner.join();
}

TEST(StoreServer, AFloodOfRequestsDelaysNoOtherClient) {
  StoreServer server(on_loopback());
  std::atomic<bool> stop = false;
  std::thread flood([&] {
    RawClient client(server);
    Bytes requests;
    for (std::uint64_t id = 1; id <= 2000; ++id) {
      const auto frame =
          internal::encode_request({.verb = Verb::erase, .id = id, .key = "no such key"});
      requests.insert(requests.end(), frame.begin(), frame.end());
    }
    while (!stop) {
      client.peer.send(requests);
      for (int i = 0; i < 2000; ++i) (void)client.answer();
    }
  });
  const auto store = join(server);
  std::chrono::nanoseconds slowest{};
  for (int i = 0; i < 100; ++i) {
    const auto before = Clock::now();
    store->add("counter", 1);
    slowest = std::max<std::chrono::nanoseconds>(slowest, Clock::now() - before);
  }
  stop = true;
  flood.join();
  EXPECT_LT(slowest, 1s);
}

}  // namespace
}  // namespace tutti::test
