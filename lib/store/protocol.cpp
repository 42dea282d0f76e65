#include "store/protocol.hpp"

#include <algorithm>
#include <type_traits>

#include "values/fail.hpp"

namespace tutti::internal {
namespace {

template <typename T>
std::byte* put(std::byte* to, T number) {
  const auto bits = static_cast<std::make_unsigned_t<T>>(number);
  for (std::size_t i = 0; i < sizeof(T); ++i)
    *to++ = static_cast<std::byte>((bits >> (8 * i)) & 0xffU);
  return to;
}

std::byte* put_bytes(std::byte* to, std::span<const std::byte> bytes) {
  return std::ranges::copy(bytes, to).out;
}

template <typename T>
T take(const std::byte* from) {
  std::make_unsigned_t<T> bits = 0;
  for (std::size_t i = sizeof(T); i-- > 0;)
    bits = static_cast<std::make_unsigned_t<T>>((std::uint64_t{bits} << 8) |
                                                std::to_integer<std::uint64_t>(from[i]));
  return static_cast<T>(bits);
}

std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

bool has_number(Verb verb) {
  return verb == Verb::get || verb == Verb::add;
}

/// Takes a body apart from its front.
class Fields {
 public:
  Fields(Verb verb, std::span<const std::byte> rest) : verb_(verb), rest_(rest) {}
  std::span<const std::byte> bytes() {
    const auto size = number<std::uint32_t>();
    if (size > rest_.size()) malformed();
    const auto field = rest_.first(size);
    rest_ = rest_.subspan(size);
    return field;
  }
  template <typename T>
  T number() {
    if (rest_.size() < sizeof(T)) malformed();
    const auto value = take<T>(rest_.data());
    rest_ = rest_.subspan(sizeof(T));
    return value;
  }
  void end() const {
    if (!rest_.empty()) malformed();
  }

 private:
  [[noreturn]] void malformed() const {
    failf(Errc::invalid_argument, "store: the lengths inside a request for {} do not fit its own",
          name_of(verb_));
  }
  Verb verb_;
  std::span<const std::byte> rest_;
};

}  // namespace

bool may_greet(std::string_view magic, std::span<const std::byte> bytes) {
  const auto expected = as_bytes(magic);
  const auto n = std::min(bytes.size(), expected.size());
  return std::ranges::equal(bytes.first(n), expected.first(n));
}

std::array<std::byte, greeting_bytes> encode_greeting(std::string_view magic, Greeting greeting) {
  std::array<std::byte, greeting_bytes> bytes{};
  auto* to = put_bytes(bytes.data(), as_bytes(magic));
  to = put(to, greeting.version);
  to = put(to, greeting.kind);
  put(to, greeting.bytes);
  return bytes;
}

Greeting decode_greeting(std::span<const std::byte> bytes) {
  const auto* from = bytes.data() + client_magic.size();
  return {.version = take<std::uint16_t>(from),
          .kind = take<std::uint16_t>(from + 2),
          .bytes = take<std::uint32_t>(from + 4)};
}

std::array<std::byte, frame_header_bytes> encode_frame_header(const Frame& frame,
                                                              std::size_t body_bytes) {
  std::array<std::byte, frame_header_bytes> bytes{};
  auto* to = put(bytes.data(), static_cast<std::uint32_t>(body_bytes));
  to = put(to, frame.kind);
  to = put(to, frame.code);
  to = put(to, std::uint16_t{0});
  put(to, frame.id);
  return bytes;
}

void FrameReader::feed(std::span<const std::byte> bytes) {
  const auto skipped = std::min(skip_, bytes.size());
  skip_ -= skipped;
  bytes = bytes.subspan(skipped);
  constexpr std::size_t keep = std::size_t{256}
                               << 10;  // A large frame's memory is not kept after it.
  if (from_ == buffer_.size() && buffer_.capacity() > keep)
    buffer_ = Bytes();
  else
    buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(from_));
  from_ = 0;
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

std::optional<Frame> FrameReader::header(std::size_t& body_bytes) const {
  if (buffered() < frame_header_bytes) return std::nullopt;
  const auto* from = buffer_.data() + from_;
  body_bytes = take<std::uint32_t>(from);
  return Frame{.kind = take<std::uint8_t>(from + 4),
               .code = take<std::uint8_t>(from + 5),
               .id = take<std::uint64_t>(from + 8)};
}

std::optional<Frame> FrameReader::next() {
  std::size_t body_bytes = 0;
  auto frame = header(body_bytes);
  if (!frame) return std::nullopt;
  if (body_bytes > max_body_bytes_)
    failf(Errc::invalid_argument,
          "store: a frame of {} bytes was announced; at most {} are allowed", body_bytes,
          max_body_bytes_);
  if (buffered() - frame_header_bytes < body_bytes) return std::nullopt;
  frame->body = std::span(buffer_).subspan(from_ + frame_header_bytes, body_bytes);
  from_ += frame_header_bytes + body_bytes;
  return frame;
}

std::optional<std::uint64_t> FrameReader::skip_unfinished() {
  std::size_t body_bytes = 0;
  const auto frame = header(body_bytes);
  if (!frame) return std::nullopt;
  const auto all = frame_header_bytes + body_bytes;
  if (buffered() >= all) return std::nullopt;
  skip_ = all - buffered();
  from_ = 0;
  buffer_ = Bytes();
  return frame->id;
}

std::string_view name_of(Verb verb) {
  switch (verb) {
    case Verb::set:
      return "set";
    case Verb::try_get:
      return "try_get";
    case Verb::get:
      return "get";
    case Verb::add:
      return "add";
    case Verb::compare_set:
      return "compare_set";
    case Verb::erase:
      return "erase";
  }
  return "unknown";
}

Bytes encode_request(const Request& request) {
  const bool has_value = request.verb == Verb::set || request.verb == Verb::compare_set;
  const bool has_expected = request.verb == Verb::compare_set;
  const auto size = 4 + request.key.size() + (has_expected ? 4 + request.expected.size() : 0) +
                    (has_value ? 4 + request.value.size() : 0) + (has_number(request.verb) ? 8 : 0);
  Bytes frame(frame_header_bytes + size);
  const Frame header{.kind = static_cast<std::uint8_t>(request.verb), .id = request.id};
  auto* to = put_bytes(frame.data(), encode_frame_header(header, size));
  const auto field = [&](std::span<const std::byte> bytes) {
    to = put_bytes(put(to, static_cast<std::uint32_t>(bytes.size())), bytes);
  };
  field(as_bytes(request.key));
  if (has_expected) field(request.expected);
  if (has_value) field(request.value);
  if (has_number(request.verb)) put(to, request.number);
  return frame;
}

Request decode_request(const Frame& frame) {
  const auto verb = static_cast<Verb>(frame.kind);
  if (verb < Verb::set || verb > Verb::erase)
    failf(Errc::invalid_argument, "store: request {} is not known to version {} of the protocol",
          frame.kind, store_version);
  Fields fields(verb, frame.body);
  Request request{.verb = verb, .id = frame.id};
  const auto key = fields.bytes();
  request.key = {reinterpret_cast<const char*>(key.data()), key.size()};
  if (verb == Verb::compare_set) request.expected = fields.bytes();
  if (verb == Verb::set || verb == Verb::compare_set) request.value = fields.bytes();
  if (has_number(verb)) request.number = fields.number<std::int64_t>();
  fields.end();
  return request;
}

}  // namespace tutti::internal
