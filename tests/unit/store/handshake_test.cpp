#include "store/handshake.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "store/log_limit.hpp"
#include "support/errors.hpp"

// Both sides of the handshake, without sockets.

namespace tutti::test {
namespace {

using internal::ClientHandshake;
using internal::ServerHandshake;
using internal::StoreAdmission;
using internal::crypto::Digest;
using State = ServerHandshake::State;

constexpr std::string_view secret = "0123456789abcdef0123456789abcdef";

Bytes copy(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

StoreServerOptions job_of_4() {
  return {.token = StoreToken::from_text(secret), .job = "job", .generation = 7, .size = 4};
}
StoreIdentity rank_2() {
  return {
      .token = StoreToken::from_text(secret), .job = "job", .generation = 7, .rank = 2, .size = 4};
}

#ifdef HAS_OPENSSL

std::atomic<int> until_failure{0};

/// Uses OpenSSL for the first time, and again, while its n-th allocation fails. Returns 0 if
/// nothing but an Error comes of it.
int use_openssl_without_memory(int n) {
  until_failure = n;
  const auto realloc = [](void* old, std::size_t bytes, const char*, int) {
    return --until_failure == 0 ? nullptr : std::realloc(old, bytes);
  };
  const auto malloc = [](std::size_t bytes, const char*, int) {
    return --until_failure == 0 ? nullptr : std::malloc(bytes);
  };
  if (::CRYPTO_set_mem_functions(malloc, realloc,
                                 [](void* data, const char*, int) { std::free(data); }) != 1)
    return 2;  // This process has used OpenSSL before.
  for (int i = 0; i < 2; ++i) {
    try {
      Digest key{};
      internal::crypto::random(key);
      (void)internal::crypto::hmac_sha256(key, key);
    } catch (const Error&) {
    }
  }
  return 0;
}

// First in this program: no other test has used OpenSSL. OpenSSL makes some 60 allocations.
TEST(OpenSsl, AFailedAllocationAtItsFirstUseIsAnError) {
  for (int n = 1; n <= 150; ++n) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) ::_exit(use_openssl_without_memory(n));
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "allocation " << n;
  }
}

#endif

/// Everything that one handshake sends, for tests that alter it.
struct Messages {
  Bytes hello{};
  Bytes challenge{};
  std::optional<Bytes> proof{};  // Empty: the client does not accept the server.
  Bytes result{};
  State state{};
};

using Alter = std::function<void(Bytes&)>;
void nothing(Bytes&) {}

Bytes take(ServerHandshake& server, std::span<const std::byte> bytes,
           const StoreAdmission& admission) {
  return server.take(bytes, admission);
}

Messages exchange(const StoreServerOptions& options, const StoreIdentity& identity,
                  const Alter& alter_hello = nothing, const Alter& alter_challenge = nothing,
                  const Alter& alter_proof = nothing) {
  const StoreAdmission admission(options);
  const ClientHandshake client(identity);
  ServerHandshake server;
  Messages messages{.hello = copy(client.hello())};
  alter_hello(messages.hello);
  messages.challenge = take(server, messages.hello, admission);
  alter_challenge(messages.challenge);
  constexpr auto whole = internal::handshake_bytes + internal::server_proof_bytes;
  if (server.state() == State::waiting && messages.challenge.size() == whole) {
    const std::span<const std::byte> all(messages.challenge);
    if (const auto proof = client.answer(all.first<internal::handshake_bytes>(),
                                         all.last<internal::server_proof_bytes>())) {
      messages.proof = copy(*proof);
      alter_proof(*messages.proof);
      messages.result = take(server, *messages.proof, admission);
    }
  }
  messages.state = server.state();
  return messages;
}

std::string text_of(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void expect_refused(const Messages& messages, const std::string& why) {
  EXPECT_EQ(messages.state, State::refused) << why;
  EXPECT_NE(text_of(messages.result).find(why), std::string::npos) << text_of(messages.result);
}

class Authenticated : public testing::Test {
  void SetUp() override {
    if (!StoreToken::available()) GTEST_SKIP() << "built without OpenSSL";
  }
};

TEST_F(Authenticated, AdmitsAClientWithTheTokenAndTheClaims) {
  const auto messages = exchange(job_of_4(), rank_2());
  EXPECT_EQ(messages.state, State::accepted);
  EXPECT_EQ(internal::decode_handshake(messages.result).kind, 0);
  auto launcher = rank_2();
  launcher.rank = -1;
  launcher.size = 0;
  EXPECT_EQ(exchange(job_of_4(), launcher).state, State::accepted) << "not a rank";
  auto any_size = job_of_4();
  any_size.size = 0;
  auto rank = rank_2();
  rank.size = 9;
  EXPECT_EQ(exchange(any_size, rank).state, State::accepted);
}

// RFC 5869, test case 1, and RFC 4231, test case 2.
TEST_F(Authenticated, UsesTheStandardFunctions) {
  namespace crypto = internal::crypto;
  const auto hex = [](std::span<const std::byte> bytes) {
    std::string text;
    for (const auto byte : bytes) text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
    return text;
  };
  const auto count_up = [](std::size_t n, unsigned from) {
    Bytes bytes(n);
    for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::byte>(from + i);
    return bytes;
  };
  Digest key;
  crypto::hkdf_sha256(Bytes(22, std::byte{0x0b}), count_up(13, 0), count_up(10, 0xf0), key);
  EXPECT_EQ(hex(key), "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf");
  const auto bytes = [](std::string_view text) { return std::as_bytes(std::span(text)); };
  EXPECT_EQ(hex(crypto::hmac_sha256(bytes("Jefe"), bytes("what do ya want for nothing?"))),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST_F(Authenticated, RefusesAnotherTokenOnBothSides) {
  auto other = rank_2();
  other.token = StoreToken::random();
  const auto messages = exchange(job_of_4(), other);
  EXPECT_EQ(messages.proof, std::nullopt) << "the client tells a wrong server nothing";
  EXPECT_EQ(messages.state, State::waiting);

  const StoreAdmission admission(job_of_4());
  ServerHandshake server;
  const ClientHandshake client(other);
  (void)take(server, client.hello(), admission);
  const auto result = take(server, Bytes(32), admission);
  EXPECT_EQ(server.state(), State::refused);
  EXPECT_NE(text_of(result).find("another token"), std::string::npos);
  EXPECT_EQ(text_of(result).find("job"), std::string::npos) << "names no job before the proof";
}

TEST_F(Authenticated, RefusesTheRightTokenWithOtherClaims) {
  const auto with = [](const auto& change) {
    auto identity = rank_2();
    change(identity);
    return exchange(job_of_4(), identity);
  };
  expect_refused(with([](auto& claims) { claims.job = "another"; }), "belongs to job 'job'");
  expect_refused(with([](auto& claims) { claims.generation = 6; }),
                 "generation 7 of the job, the client to 6");
  expect_refused(with([](auto& claims) { claims.size = 5; }), "4 ranks, the client is rank 2 of 5");
  for (const auto& [rank, size] : {std::pair{4, 4}, {-2, 4}, {-1, 4}})
    expect_error(Errc::invalid_argument, {std::to_string(rank) + " of " + std::to_string(size)},
                 [rank = rank, size = size] {
                   auto identity = rank_2();
                   identity.rank = rank;
                   identity.size = size;
                   ClientHandshake client(identity);
                 });
}

TEST_F(Authenticated, BothSidesNeedATokenOrNone) {
  auto open = job_of_4();
  open.token = {};
  const ClientHandshake client(rank_2());
  ServerHandshake without;
  const auto refused = take(without, client.hello(), StoreAdmission(open));
  EXPECT_EQ(without.state(), State::refused);
  EXPECT_NE(text_of(refused).find("the client has a token, and the store has none"),
            std::string::npos);
  ServerHandshake with;
  const auto plain = internal::encode_handshake(internal::client_magic, {});
  const auto told = take(with, plain, StoreAdmission(job_of_4()));
  EXPECT_EQ(with.state(), State::refused);
  EXPECT_NE(text_of(told).find("TUTTI_TOKEN_FILE"), std::string::npos);
}

TEST_F(Authenticated, EveryFlippedBitOfEveryMessageIsNoticed) {
  const auto intact = exchange(job_of_4(), rank_2());
  const auto flip = [](std::size_t bit) {
    return [bit](Bytes& bytes) { bytes[bit / 8] ^= static_cast<std::byte>(1U << bit % 8); };
  };
  for (std::size_t bit = 0; bit < 8 * intact.hello.size(); ++bit)
    EXPECT_NE(exchange(job_of_4(), rank_2(), flip(bit)).state, State::accepted) << "hello " << bit;
  for (std::size_t bit = 0; bit < 8 * intact.challenge.size(); ++bit)
    EXPECT_EQ(exchange(job_of_4(), rank_2(), nothing, flip(bit)).proof, std::nullopt)
        << "challenge " << bit;
  for (std::size_t bit = 0; bit < 8 * intact.proof->size(); ++bit)
    EXPECT_EQ(exchange(job_of_4(), rank_2(), nothing, nothing, flip(bit)).state, State::refused)
        << "proof " << bit;
}

TEST_F(Authenticated, AReplayedHandshakeProvesNothing) {
  const auto heard = exchange(job_of_4(), rank_2());
  const StoreAdmission admission(job_of_4());
  ServerHandshake server;
  (void)take(server, heard.hello, admission);
  (void)take(server, *heard.proof, admission);
  EXPECT_EQ(server.state(), State::refused);
  // A server that repeats the bytes of another one.
  const ClientHandshake client(rank_2());
  const std::span<const std::byte> all(heard.challenge);
  EXPECT_EQ(client.answer(all.first<internal::handshake_bytes>(),
                          all.last<internal::server_proof_bytes>()),
            std::nullopt);
}

TEST_F(Authenticated, AReflectedProofProvesNothing) {
  const StoreAdmission admission(job_of_4());
  ServerHandshake server;
  const ClientHandshake client(rank_2());
  const auto challenge = take(server, client.hello(), admission);
  (void)take(server, std::span(challenge).last(32), admission);
  EXPECT_EQ(server.state(), State::refused);
  // The proof of a client of another connection, with its nonce as the nonce of the server.
  ServerHandshake other;
  const auto answered = take(other, client.hello(), admission);
  EXPECT_NE(answered, challenge) << "a new nonce for every connection";
}

TEST_F(Authenticated, TheSameBytesInPiecesOfAnySizeAreTheSame) {
  const StoreAdmission admission(job_of_4());
  const ClientHandshake client(rank_2());
  for (const std::size_t step : {1U, 5U, 17U, 95U}) {
    ServerHandshake server;
    const auto feed = [&](std::span<const std::byte> bytes) {
      Bytes all;
      for (; !bytes.empty(); bytes = bytes.subspan(std::min(step, bytes.size()))) {
        const auto reply = take(server, bytes.first(std::min(step, bytes.size())), admission);
        all.insert(all.end(), reply.begin(), reply.end());
      }
      return all;
    };
    const auto challenge = feed(client.hello());
    const std::span<const std::byte> all(challenge);
    const auto proof = client.answer(all.first<internal::handshake_bytes>(),
                                     all.last<internal::server_proof_bytes>());
    ASSERT_NE(proof, std::nullopt);
    EXPECT_EQ(server.state(), State::waiting);
    (void)feed(*proof);
    EXPECT_EQ(server.state(), State::accepted) << step;
  }
}

TEST_F(Authenticated, LeavesTheBytesAfterTheHandshake) {
  const StoreAdmission admission(job_of_4());
  const ClientHandshake client(rank_2());
  auto sent = copy(client.hello());
  sent.resize(sent.size() + 32 + 5);  // A wrong proof, and a request.
  ServerHandshake server;
  std::span<const std::byte> rest(sent);
  const auto reply = server.take(rest, admission);
  EXPECT_EQ(server.state(), State::refused);
  EXPECT_EQ(rest.size(), 5U);
  EXPECT_EQ(server.refusal(reply), "the client has another token than the store");
}

TEST(ServerHandshake, HasAFixedSize) {
  EXPECT_LE(sizeof(ServerHandshake), 200U);
}

TEST(LogLimit, AdmitsOneLineAMinuteWithTheNumberOfEvents) {
  internal::LogLimit limit;
  const internal::LogLimit::Clock::time_point start{std::chrono::hours(1)};
  EXPECT_EQ(limit.due(start), std::nullopt) << "nothing happened";
  EXPECT_EQ(limit.count(start), 1U);
  for (int second = 1; second < 60; ++second)
    EXPECT_EQ(limit.count(start + std::chrono::seconds(second)), std::nullopt);
  EXPECT_EQ(limit.due(start + std::chrono::seconds(60)), 59U);
  EXPECT_EQ(limit.due(start + std::chrono::seconds(600)), std::nullopt);
  EXPECT_EQ(limit.count(start + std::chrono::seconds(600)), 1U);
}

}  // namespace
}  // namespace tutti::test
