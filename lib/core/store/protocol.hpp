#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include <tutti/error.hpp>
#include <tutti/store/store.hpp>

// The messages between a TCP store and its server, as functions over bytes. docs/store.md has the
// layout; all numbers are little-endian.

namespace tutti::internal {

// --- Handshakes: in each direction 16 bytes, and after a refusal its text.

inline constexpr std::uint16_t store_version = 2;
inline constexpr std::size_t handshake_bytes = 16;
inline constexpr std::size_t max_refusal_bytes = 4096;
/// Kinds of authentication (handshake.hpp).
inline constexpr std::uint16_t kind_none = 0;
inline constexpr std::uint16_t kind_token = 1;
/// Two different values, so that a socket detects that it is connected to itself.
inline constexpr std::string_view client_magic = "\xd9tuttiC\n";
inline constexpr std::string_view server_magic = "\xd9tuttiS\n";

struct Handshake {
  std::uint16_t version = store_version;
  /// Client: the kind of authentication. Server: 0 if it accepts the client so far, else 1 + Errc.
  std::uint16_t kind = kind_none;
  std::uint32_t bytes = 0;  ///< Length of the credentials, proof or refusal text that follow.
};
/// True if a handshake can begin with these bytes, which may be fewer than handshake_bytes.
bool may_be_handshake(std::string_view magic, std::span<const std::byte> bytes);
Bytes encode_handshake(std::string_view magic, Handshake handshake);
/// A server's handshake that refuses the client, with the reason.
Bytes encode_refusal(Errc code, std::string_view text);
/// Decodes the first handshake_bytes bytes, which may_be_handshake() has accepted. @throws Error
/// invalid_argument if there are fewer.
Handshake decode_handshake(std::span<const std::byte> bytes);

// --- Frames: a header of 16 bytes and a body.

struct Frame {
  std::uint8_t kind = 0;  ///< A Verb or an Outcome.
  std::uint8_t code = 0;  ///< The Errc of an error.
  std::uint64_t id = 0;   ///< The request's number; a reply repeats it.
  std::span<const std::byte> body{};
};
inline constexpr std::size_t frame_header_bytes = 16;
inline constexpr std::size_t max_reply_bytes = Store::max_value_bytes;
/// Room for a key, two values and a margin: a value slightly over the limit gets its own error and
/// is not treated as garbage.
inline constexpr std::size_t max_request_bytes =
    2 * Store::max_value_bytes + (std::size_t{64} << 10);

Bytes encode_frame_header(const Frame& frame, std::size_t body_bytes);

/// Cuts a stream into frames. A length above the limit is refused before memory is allocated.
/// Memory grows with the bytes received, not with the length in the header.
class FrameReader {
 public:
  explicit FrameReader(std::size_t max_body_bytes) : max_body_bytes_(max_body_bytes) {}
  /// Appends bytes. Frames returned before become invalid.
  void feed(std::span<const std::byte> bytes);
  /// The next complete frame, if there is one. @throws Error invalid_argument for a length above
  /// the limit; afterwards the stream cannot be read.
  std::optional<Frame> next();
  /// If the header of an incomplete frame has arrived, skips the rest of that frame and returns its
  /// id.
  std::optional<std::uint64_t> skip_unfinished();
  std::size_t buffered() const { return buffer_.size() - from_; }

 private:
  std::optional<Frame> header(std::size_t& body_bytes) const;
  std::size_t max_body_bytes_;
  std::size_t from_ = 0;  // Bytes before it have been consumed.
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
  std::span<const std::byte> expected{};  ///< The expected value of compare_set.
  std::span<const std::byte> value{};  ///< The value of set, or the desired value of compare_set.
  /// add: the delta. get: the nanoseconds to wait; the largest number means no deadline.
  std::int64_t number = 0;
};
Bytes encode_request(const Request& request);
/// Decodes a request, which refers to the frame's body. Does not check the limits of keys and
/// values. @throws Error invalid_argument when the body does not match the verb.
Request decode_request(const Frame& frame);

// --- Replies: the body is the value, or the text of the error.

enum class Outcome : std::uint8_t { value = 1, nothing, error };

}  // namespace tutti::internal
