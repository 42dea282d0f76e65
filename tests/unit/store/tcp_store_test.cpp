#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <tutti/store/store.hpp>
#include <tutti/store/store_server.hpp>

#include "store/protocol.hpp"
#include "store/served_store.hpp"
#include "store/tcp_socket.hpp"
#include "support/errors.hpp"
#include "support/processes.hpp"
#include "support/ranks.hpp"
#include "unit/store/tcp_peer.hpp"

// The client, with a real server, and with servers that break the protocol.

namespace tutti::test {
namespace {

using Clock = std::chrono::steady_clock;

StoreServerOptions on_loopback() {
  return {.host = "127.0.0.1"};
}
std::shared_ptr<Store> join(int port, std::chrono::nanoseconds timeout = 10s) {
  return make_tcp_store("127.0.0.1", port, timeout);
}
std::string address_text(int port) {
  return "127.0.0.1:" + std::to_string(port);
}

void welcome(TcpPeer& peer) {
  (void)peer.read(internal::handshake_bytes);
  peer.send(internal::encode_handshake(internal::server_magic, {}));
}

/// The next request on this connection. Tests use only its number.
std::uint64_t read_request(TcpPeer& peer) {
  const auto header = peer.read(internal::frame_header_bytes);
  std::size_t body = 0;
  for (std::size_t i = 4; i-- > 0;) body = body << 8 | std::to_integer<std::size_t>(header[i]);
  (void)peer.read(body);
  std::uint64_t id = 0;
  for (std::size_t i = 8; i-- > 0;) id = id << 8 | std::to_integer<std::uint64_t>(header[8 + i]);
  return id;
}

void reply(TcpPeer& peer, std::uint64_t id, internal::Outcome outcome, std::string_view body) {
  const internal::Frame frame{.kind = static_cast<std::uint8_t>(outcome), .id = id};
  peer.send(internal::encode_frame_header(frame, body.size()));
  peer.send(body);
}

void stay_until_closed(TcpPeer& peer) {
  (void)peer.closed_within(10s);
}

TEST(TcpStore, KnowsItsAddressOnTheWayToTheStore) {
  StoreServer server;
  const auto by_4 = make_tcp_store("127.0.0.1", server.port(), 5s);
  EXPECT_EQ(by_4->local_address(), "127.0.0.1");
  EXPECT_EQ(make_tcp_store("::1", server.port(), 5s)->local_address(), "::1");
  EXPECT_EQ(make_prefix_store(by_4, "prefix/")->local_address(), "127.0.0.1");
  EXPECT_EQ(make_memory_store()->local_address(), "");
}

TEST(TcpStore, KnowsWhetherItsServerIsInThisProcess) {
  using internal::is_served_here;
  const StoreServer server({.host = "*"});  // IPv4 through an IPv6 socket.
  const auto by_4 = make_tcp_store("127.0.0.1", server.port(), 5s);
  EXPECT_TRUE(is_served_here(*by_4));
  EXPECT_TRUE(is_served_here(*make_tcp_store("::1", server.port(), 5s)));
  EXPECT_TRUE(is_served_here(*make_prefix_store(by_4, "prefix/")));
  EXPECT_FALSE(is_served_here(*make_memory_store()));
  const auto child = in_child([&] {
    return std::string(
        is_served_here(*make_tcp_store("127.0.0.1", server.port(), 5s)) ? "here" : "elsewhere");
  });
  EXPECT_EQ(child.output, "elsewhere");
}

TEST(TcpStore, RefusesAHostAndAPortThatCannotBe) {
  expect_error(Errc::invalid_argument, {"host"}, [] { (void)make_tcp_store("", 29500, 1s); });
  for (const int port : {-1, 0, 65536})
    expect_error(Errc::invalid_argument, {std::to_string(port), "65535"},
                 [&] { (void)make_tcp_store("127.0.0.1", port, 1s); });
}

TEST(TcpStore, AClosedPortIsATimeoutThatSaysWhere) {
  const int port = free_port();
  const auto before = Clock::now();
  expect_error(Errc::timeout, {address_text(port), "Connection refused", "attempts"},
               [&] { (void)join(port, 150ms); });
  const auto took = Clock::now() - before;
  EXPECT_GE(took, 150ms);
  EXPECT_LT(took, 5s);
}

TEST(TcpStore, AHostWithoutAnAddressIsATimeoutThatNamesIt) {
  expect_error(Errc::timeout, {"no-such-host.invalid:29500", "does not resolve"},
               [] { (void)make_tcp_store("no-such-host.invalid", 29500, 50ms); });
}

TEST(TcpStore, AJoinThatTakesLongSaysWhyAndThenEachMinute) {
  const Clock::time_point begun{1h};
  internal::WaitWarnings warnings(begun);
  EXPECT_FALSE(warnings.due(begun + 9s));
  EXPECT_EQ(warnings.due(begun + 11s), 11s);
  EXPECT_FALSE(warnings.due(begun + 70s));
  EXPECT_EQ(warnings.due(begun + 71s), 71s);

  asio::io_context io;
  const int port = free_port();
  testing::internal::CaptureStderr();
  expect_error(Errc::timeout, {address_text(port)}, [&] {
    (void)internal::connect_to_store(io, "127.0.0.1", port, 100ms, {},
                                     internal::WaitWarnings(Clock::now(), 20ms));
  });
  const auto text = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(text.starts_with("tutti: warning: store " + address_text(port) + ": not reached"))
      << text;
  EXPECT_TRUE(text.ends_with(": Connection refused; 127.0.0.1 is loopback: this host\n")) << text;
}

TEST(TcpStore, TriesAgainUntilThereIsAServer) {
  std::atomic<int> connections = 0;
  const TcpScript server([&](TcpPeer& peer, int connection) {
    ++connections;
    if (connection < 3) return;  // As a proxy without a server behind it does.
    welcome(peer);
    reply(peer, read_request(peer), internal::Outcome::nothing, "");
    stay_until_closed(peer);
  });
  join(server.port())->set("key", "value");
  EXPECT_EQ(connections, 4);
}

TEST(TcpStore, SomethingElseThatAnswersIsNamedAtOnce) {
  const TcpScript server([](TcpPeer& peer, int) {
    peer.send("HTTP/1.1 400 Bad Request\r\n\r\n");
    stay_until_closed(peer);
  });
  const auto before = Clock::now();
  expect_error(Errc::invalid_argument,
               {address_text(server.port()), "does not speak tutti's store protocol", "first bytes",
                "48 54 54 50", "HTTP"},
               [&] { (void)join(server.port(), 60s); });
  EXPECT_LT(Clock::now() - before, 5s);
}

TEST(TcpStore, SomethingElseThatSaysNothingIsNamedAtTheTimeout) {
  const TcpScript server([](TcpPeer& peer, int) { stay_until_closed(peer); });
  expect_error(Errc::timeout,
               {address_text(server.port()), "did not answer the handshake", "tutti"},
               [&] { (void)join(server.port(), 100ms); });
}

TEST(TcpStore, AnEchoIsNoStore) {
  const TcpScript server([](TcpPeer& peer, int) {
    peer.send(peer.read(internal::handshake_bytes));
    stay_until_closed(peer);
  });
  expect_error(Errc::timeout, {"connected to itself"}, [&] { (void)join(server.port(), 300ms); });
}

TEST(TcpStore, AnotherVersionIsUnsupportedAndNamesBoth) {
  const TcpScript server([](TcpPeer& peer, int) {
    (void)peer.read(internal::handshake_bytes);
    peer.send(internal::encode_handshake(internal::server_magic, {.version = 7}));
    stay_until_closed(peer);
  });
  expect_error(Errc::unsupported, {"version 7", std::to_string(internal::store_version)},
               [&] { (void)join(server.port(), 60s); });
}

TEST(TcpStore, AnAnswerAfterTheDeadlineIsNotTakenForTheNextOne) {
  const TcpScript server([](TcpPeer& peer, int) {
    welcome(peer);
    const auto first = read_request(peer);
    const auto second = read_request(peer);  // The client has abandoned the first one.
    reply(peer, first, internal::Outcome::value, "late");
    reply(peer, second, internal::Outcome::value, "second");
    reply(peer, read_request(peer), internal::Outcome::value, "third");
    stay_until_closed(peer);
  });
  const auto store = join(server.port());
  const auto before = Clock::now();
  expect_error(Errc::timeout, {"'the key'", "does not answer", address_text(server.port())},
               [&] { (void)store->get("the key", 10ms); });
  EXPECT_LT(Clock::now() - before, 3s);
  EXPECT_EQ(store->get_text("key", 10s), "second");
  EXPECT_EQ(store->get_text("key", 10s), "third");
}

TEST(TcpStore, RepliesInAnotherOrderReachTheirThreads) {
  const TcpScript server([](TcpPeer& peer, int) {
    welcome(peer);
    std::vector<std::uint64_t> ids;
    for (int i = 0; i < 4; ++i) ids.push_back(read_request(peer));
    for (auto id = ids.rbegin(); id != ids.rend(); ++id)
      reply(peer, *id, internal::Outcome::value, std::to_string(*id));
    stay_until_closed(peer);
  });
  const auto store = join(server.port());
  PerRank<std::string> got(4);
  on_threads(4, [&](int rank) { got[rank] = store->get_text("key", 10s); });
  auto all = got.all();
  std::ranges::sort(all);
  EXPECT_EQ(all, (std::vector<std::string>{"1", "2", "3", "4"}));
}

TEST(TcpStore, AServerThatDoesNotAnswerIsATimeoutOfEveryCall) {
  const TcpScript server([](TcpPeer& peer, int) {
    welcome(peer);
    stay_until_closed(peer);
  });
  const auto store = join(server.port(), 100ms);
  const auto silent = [&](const std::function<void()>& call, const std::string& verb) {
    expect_error(Errc::timeout, {address_text(server.port()), verb + " 'key'"}, call);
  };
  silent([&] { store->set("key", "value"); }, "set");
  silent([&] { (void)store->try_get("key"); }, "try_get");
  silent([&] { store->add("key", 1); }, "add");
  silent([&] { store->erase("key"); }, "erase");
  // Far more than both buffers hold. Bytes that are unsent when the caller gives up are never sent.
  const std::string large(Store::max_value_bytes, 'x');
  for (int i = 0; i < 4; ++i) silent([&] { store->set("key", large); }, "set");
}

TEST(TcpStore, AServerThatLeavesIsPeerLostForAllClientsAndFromThenOn) {
  std::optional<StoreServer> server(on_loopback());
  const auto port = server->port();
  const auto store = join(port);
  std::atomic<int> waiting = 0;
  std::thread leaves([&] {
    while (waiting < 3) std::this_thread::yield();
    server.reset();
  });
  on_threads(3, [&](int rank) {
    ++waiting;
    expect_error(Errc::peer_lost, {address_text(port)},
                 [&] { (void)store->get("key/" + std::to_string(rank), 20s); });
  });
  leaves.join();
  for (int i = 0; i < 3; ++i)  // Throws, and raises no signal.
    expect_error(Errc::peer_lost, {address_text(port)}, [&] { store->set("key", "value"); });
}

TEST(TcpStore, AnEndInTheMiddleOfAReplyIsPeerLost) {
  const TcpScript server([](TcpPeer& peer, int connection) {
    if (connection > 0) return;
    welcome(peer);
    const internal::Frame frame{.kind = static_cast<std::uint8_t>(internal::Outcome::value),
                                .id = read_request(peer)};
    peer.send(internal::encode_frame_header(frame, 100));
    peer.send("only a part");
  });
  const auto store = join(server.port());
  expect_error(Errc::peer_lost, {address_text(server.port())},
               [&] { (void)store->get("key", 5s); });
  expect_error(Errc::peer_lost, {address_text(server.port())},
               [&] { (void)store->try_get("key"); });
}

TEST(TcpStore, RepliesThatMakeNoSenseBreakTheConnectionByName) {
  const auto answer = [](const std::function<void(TcpPeer&, std::uint64_t)>& with,
                         const std::vector<std::string>& texts) {
    const TcpScript server([&](TcpPeer& peer, int) {
      welcome(peer);
      with(peer, read_request(peer));
      stay_until_closed(peer);
    });
    const auto store = join(server.port());
    auto all = texts;
    all.push_back(address_text(server.port()));
    expect_error(Errc::backend, all, [&] { (void)store->get("key", 5s); });
    expect_error(Errc::backend, all, [&] { (void)store->get("key", 5s); });
  };
  using internal::Outcome;
  answer([](TcpPeer& peer, std::uint64_t) { reply(peer, 77, Outcome::value, ""); }, {"77"});
  answer([](TcpPeer& peer, std::uint64_t id) { reply(peer, id, Outcome{9}, ""); }, {"kind 9"});
  answer(
      [](TcpPeer& peer, std::uint64_t id) {
        const internal::Frame frame{.kind = static_cast<std::uint8_t>(Outcome::value), .id = id};
        peer.send(internal::encode_frame_header(frame, 0xffffffff));
      },
      {"4294967295", std::to_string(Store::max_value_bytes)});
}

TEST(TcpStore, ThreadsThatTimeOutLeaveTheOthersInOrder) {
  StoreServer server(on_loopback());
  const auto store = join(server.port());
  on_threads(6, [&](int rank) {
    const auto mine = std::to_string(rank);
    for (int i = 0; i < 30; ++i) {
      if (rank % 2 == 0)
        expect_error(Errc::timeout, {"'never/" + mine + "'"},
                     [&] { (void)store->get("never/" + mine, std::chrono::microseconds(200)); });
      store->set("key/" + mine, mine + "/" + std::to_string(i));
      ASSERT_EQ(store->get_text("key/" + mine, 10s), mine + "/" + std::to_string(i));
    }
  });
}

TEST(TcpStore, LargeValuesOfSeveralThreadsCrossWithoutMixing) {
  StoreServer server(on_loopback());
  const auto store = join(server.port());
  on_threads(4, [&](int rank) {
    const auto key = "large/" + std::to_string(rank);
    for (std::size_t size : {std::size_t{3} << 20, Store::max_value_bytes}) {
      const std::string value(size, static_cast<char>('a' + rank));
      store->set(key, value);
      ASSERT_EQ(store->get_text(key, 20s), value);
    }
  });
}

TEST(TcpStore, AForkedChildIsRefusedAndTheParentGoesOn) {
  StoreServer server(on_loopback());
  auto store = join(server.port());
  store->set("key", "of the parent");
  const auto child = in_child([&]() -> std::string {
    const auto error = expect_error(Errc::forked, {"fork", address_text(server.port())},
                                    [&] { (void)store->get("key", 1s); });
    store.reset();  // Closes only the child's copy.
    try {
      (void)server.clients();
      return "a server";
    } catch (const Error& of_server) {
      return std::string(name_of(error.code())) + " " + std::string(name_of(of_server.code()));
    }
  });
  EXPECT_EQ(child.output, "forked forked");
  EXPECT_EQ(store->get_text("key", 1s), "of the parent");
  EXPECT_EQ(server.clients(), 1);
}

}  // namespace
}  // namespace tutti::test
