#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <tutti/error.hpp>
#include <tutti/store/store.hpp>

// What travels between a TCP store and its server, as functions over bytes. docs/store.md shows
// the layout; all numbers are little-endian.

namespace tutti::internal {

// --- Handshakes: 16 bytes each way, before anything else, then the text of a refusal.

inline constexpr std::uint16_t store_version = 1;
inline constexpr std::size_t handshake_bytes = 16;
inline constexpr std::size_t max_refusal_bytes = 4096;
/// Two different ones, so that a socket that is connected to itself is noticed.
inline constexpr std::string_view client_magic = "\xd9tuttiC\n";
inline constexpr std::string_view server_magic = "\xd9tuttiS\n";

struct Handshake {
  std::uint16_t version = store_version;
  /// Client: how it authenticates, 0 for not at all. Server: 0 for welcome, else 1 + Errc.
  std::uint16_t kind = 0;
  std::uint32_t bytes = 0;  ///< What follows: credentials, or the text of the refusal.
};
/// Whether these bytes, fewer than a handshake perhaps, can begin one.
bool may_be_handshake(std::string_view magic, std::span<const std::byte> bytes);
Bytes encode_handshake(std::string_view magic, Handshake handshake);
/// A server's handshake with the reason why the client is not let in.
Bytes encode_refusal(Errc code, std::string_view text);
/// Of `handshake_bytes` bytes that may_be_handshake(). @throws Error for fewer.
Handshake decode_handshake(std::span<const std::byte> bytes);

// --- Frames: a header of 16 bytes and a body.

struct Frame {
  std::uint8_t kind = 0;  ///< A Verb or an Outcome.
  std::uint8_t code = 0;  ///< Of an error: its Errc.
  std::uint64_t id = 0;   ///< The request's number; a reply repeats it.
  std::span<const std::byte> body{};
};
inline constexpr std::size_t frame_header_bytes = 16;
inline constexpr std::size_t max_reply_bytes = Store::max_value_bytes;
/// A key and two values, with room to tell apart what is a little too long from garbage.
inline constexpr std::size_t max_request_bytes =
    2 * Store::max_value_bytes + (std::size_t{64} << 10);

Bytes encode_frame_header(const Frame& frame, std::size_t body_bytes);

/// Cuts a stream into frames. A length is held against the limit before anything is kept for it,
/// and memory grows with what has come, not with what was announced.
class FrameReader {
 public:
  explicit FrameReader(std::size_t max_body_bytes) : max_body_bytes_(max_body_bytes) {}
  /// Ends the life of frames returned before.
  void feed(std::span<const std::byte> bytes);
  /// The next whole frame, if it is there. @throws Error invalid_argument for a length over the
  /// limit; the stream is of no use afterwards.
  std::optional<Frame> next();
  /// Gives up the frame that has begun: its body will be skipped. Its id, if there is one.
  std::optional<std::uint64_t> skip_unfinished();
  std::size_t buffered() const { return buffer_.size() - from_; }

 private:
  std::optional<Frame> header(std::size_t& body_bytes) const;
  std::size_t max_body_bytes_;
  std::size_t from_ = 0;  // What lies before is done with.
  std::size_t skip_ = 0;
  Bytes buffer_;
};

// --- Requests

enum class Verb : std::uint8_t { set = 1, try_get, get, add, compare_set, erase };
std::string_view name_of(Verb verb);

struct Request {
  Verb verb{};
  std::uint64_t id = 0;
  std::string_view key{};
  std::span<const std::byte> expected{};  ///< Of compare_set.
  std::span<const std::byte> value{};     ///< Of set; of compare_set what is desired.
  /// Of add: the delta. Of get: nanoseconds to wait; the largest number is for ever.
  std::int64_t number = 0;
};
Bytes encode_request(const Request& request);
/// Borrows the frame's body. The limits of keys and values are not held against it.
/// @throws Error invalid_argument when body and verb do not fit together.
Request decode_request(const Frame& frame);

// --- Replies: the body is the value, or the text of the error.

enum class Outcome : std::uint8_t { value = 1, nothing, error };

}  // namespace tutti::internal
