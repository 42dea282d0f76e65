#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "store/protocol.hpp"
#include "store/requests.hpp"

// A client may send any bytes, cut anywhere. Feeds them to the handshake, the frame reader, the
// requests and the table of the server, without sockets. Every request is answered once or waits,
// and memory stays within the limits.

namespace {

using namespace tutti;
using namespace tutti::internal;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

/// The server's replies to a client that sends `bytes` in pieces of `step` bytes.
class Session {
 public:
  Session()
      : requests_({.keys = 8, .bytes = 4096}, [this](std::uint64_t client, const Reply& reply) {
          require(client == 1, "the reply is for the client that asked");
          require((reply.outcome == Outcome::value) == (reply.value != nullptr),
                  "a value comes with its outcome");
          require(reply.outcome != Outcome::error || !reply.text.empty(), "an error has a text");
          require(++answered_[reply.id] <= asked_[reply.id], "one answer to one request");
          output_ += std::to_string(reply.id) + ":" +
                     std::to_string(static_cast<int>(reply.outcome)) + ":" + reply.text;
          if (reply.value != nullptr)
            output_.append(reinterpret_cast<const char*>(reply.value->data()), reply.value->size());
        }) {}

  std::string run(std::span<const std::byte> bytes, std::size_t step) {
    try {
      while (!bytes.empty()) {
        const auto n = std::min(step, bytes.size());
        feed(bytes.first(n));
        bytes = bytes.subspan(n);
      }
    } catch (const Error& error) {  // The server closes the connection.
      output_ += error.what();
    }
    // By the last deadline all waiting requests are answered, except those without a deadline.
    requests_.expire(Clock::time_point::max() - std::chrono::nanoseconds(1));
    requests_.forget(1);
    require(requests_.next_expiry() == Clock::time_point::max(), "nothing waits for who has left");
    return output_;
  }

 private:
  using Clock = StoreRequests::Clock;

  void feed(std::span<const std::byte> bytes) {
    const auto n = std::min(bytes.size(), handshake_bytes - handshake_.size());
    handshake_.insert(handshake_.end(), bytes.begin(),
                      bytes.begin() + static_cast<std::ptrdiff_t>(n));
    if (!may_be_handshake(client_magic, handshake_)) fail(Errc::invalid_argument, "handshake");
    if (handshake_.size() < handshake_bytes) return;
    const auto handshake = decode_handshake(handshake_);
    const auto again = encode_handshake(client_magic, handshake);
    require(std::ranges::equal(again, handshake_), "a handshake survives decode and encode");
    reader_.feed(bytes.subspan(n));
    while (const auto frame = reader_.next()) {
      const auto request = decode_request(*frame);
      const auto encoded = encode_request(request);
      require(encoded.size() == frame_header_bytes + frame->body.size() &&
                  std::equal(frame->body.begin(), frame->body.end(),
                             encoded.begin() + frame_header_bytes),
              "a request survives decode and encode");
      ++asked_[request.id];
      requests_.handle(1, request, now_);
      now_ += std::chrono::milliseconds(1);
      requests_.expire(now_);
    }
    require(reader_.buffered() <= frame_header_bytes + max_request_bytes, "the buffer is bounded");
  }

  Bytes handshake_;
  FrameReader reader_{max_request_bytes};
  StoreRequests requests_;
  Clock::time_point now_{};
  std::map<std::uint64_t, int> asked_;
  std::map<std::uint64_t, int> answered_;
  std::string output_;
};

/// Reads the same bytes as a server's replies to a client that abandons frames in between.
void read_replies(std::span<const std::byte> bytes, std::size_t step) {
  FrameReader reader(64);
  try {
    for (bool skip = false; !bytes.empty(); skip = !skip) {
      const auto n = std::min(step, bytes.size());
      reader.feed(bytes.first(n));
      bytes = bytes.subspan(n);
      while (const auto frame = reader.next())
        require(frame->body.size() <= 64, "a body within the limit");
      if (skip) (void)reader.skip_unfinished();
      require(reader.buffered() < frame_header_bytes + 64, "only an unfinished frame is kept");
    }
  } catch (const Error&) {
  }
}

}  // namespace

// The name is libFuzzer's.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);   // NOLINT
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {  // NOLINT
  if (size == 0) return 0;
  const std::size_t step = 1 + data[0] % 40;
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(1);
  // The replies do not depend on the cuts.
  const auto in_pieces = Session().run(bytes, step);
  require(in_pieces == Session().run(bytes, bytes.size()), "pieces and whole say the same");
  read_replies(bytes, step);

  // Prepends the handshake, because few inputs contain one.
  const auto hello = encode_handshake(client_magic, {});
  std::vector<std::byte> input(hello.begin(), hello.end());
  input.insert(input.end(), bytes.begin(), bytes.end());
  require(Session().run(input, step) == Session().run(input, input.size()),
          "pieces and whole say the same");
  return 0;
}
