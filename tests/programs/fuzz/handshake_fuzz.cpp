#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "store/handshake.hpp"

// An unauthenticated peer may send any bytes, cut anywhere, to a server with a token and to one
// without. Feeds them to both sides of the handshake, without sockets. A server admits only what
// the client with the token has sent.

namespace {

using namespace tutti;
using namespace tutti::internal;
using State = ServerHandshake::State;

constexpr std::string_view secret = "a token that the fuzzer does not know";
constexpr std::size_t challenge_bytes = handshake_bytes + server_proof_bytes;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

StoreServerOptions options(bool token) {
  StoreServerOptions options{.job = "job", .generation = 1, .size = 2};
  if (token) options.token = StoreToken::from_text(secret);
  return options;
}

struct Run {
  State state{};
  std::size_t replied = 0;
  std::size_t left = 0;
};

/// The server's state after `bytes` in pieces of `step` bytes.
Run run(const StoreAdmission& admission, std::span<const std::byte> bytes, std::size_t step) {
  ServerHandshake server;
  Run run;
  while (!bytes.empty() && server.state() == State::waiting) {
    auto piece = bytes.first(std::min(step, bytes.size()));
    const auto given = piece.size();
    const auto reply = server.take(piece, admission);
    require(server.state() != State::waiting || piece.empty(), "a waiting server takes all bytes");
    require(server.state() != State::foreign || reply.empty(), "no reply to another protocol");
    if (server.state() == State::refused)
      require(!server.refusal(reply).empty(), "a refusal has a text");
    run.replied += reply.size();
    bytes = bytes.subspan(given - piece.size());
  }
  run.state = server.state();
  run.left = bytes.size();
  return run;
}

/// The client with the token and the server, with the fuzzer's bytes XORed over all messages.
void flip(const StoreAdmission& admission, std::span<const std::byte> mask) {
  bool flipped = false;
  const auto through = [&](std::span<const std::byte> message) {
    Bytes altered(message.begin(), message.end());
    const auto n = std::min(mask.size(), altered.size());
    for (std::size_t i = 0; i < n; ++i) {
      altered[i] ^= mask[i];
      flipped = flipped || mask[i] != std::byte{};
    }
    mask = mask.subspan(n);
    return altered;
  };
  const ClientHandshake client({.token = StoreToken::from_text(secret),
                                .job = "job",
                                .generation = 1,
                                .rank = 1,
                                .size = 2});
  ServerHandshake server;
  const auto hello = through(client.hello());
  std::span<const std::byte> bytes(hello);
  const auto challenge = through(server.take(bytes, admission));
  if (server.state() == State::waiting && challenge.size() == challenge_bytes) {
    const std::span<const std::byte> all(challenge);
    const auto proof = client.answer(all.first<handshake_bytes>(), all.last<server_proof_bytes>());
    require(proof.has_value() == !flipped, "the client accepts exactly the server's bytes");
    if (!proof) return;
    const auto sent = through(*proof);
    bytes = sent;
    (void)server.take(bytes, admission);
  }
  require((server.state() == State::accepted) == !flipped, "admitted exactly the client's bytes");
}

}  // namespace

// The name is libFuzzer's.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);   // NOLINT
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {  // NOLINT
  if (size == 0) return 0;
  static const StoreAdmission with_token(options(true));
  static const StoreAdmission without(options(false));
  const std::size_t step = 1 + data[0] % 40;
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  for (const auto* admission : {&with_token, &without}) {
    const auto whole = run(*admission, bytes, bytes.size());
    const auto pieces = run(*admission, bytes, step);
    require(whole.state == pieces.state && whole.replied == pieces.replied,
            "pieces and whole are the same");
    require(whole.state == State::foreign || whole.left == pieces.left, "the same bytes are left");
    require(whole.replied <= challenge_bytes + handshake_bytes + max_refusal_bytes,
            "replies are bounded");
    require(admission == &without || whole.state != State::accepted, "no proof, no admission");
  }
  flip(with_token, bytes);
  return 0;
}
