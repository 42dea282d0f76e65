#include "store/protocol.hpp"

#include <algorithm>

#include "values/bytes.hpp"
#include "values/fail.hpp"

namespace tutti::internal {
namespace {

bool has_number(Verb verb) {
  return verb == Verb::get || verb == Verb::add;
}

}  // namespace

bool may_be_handshake(std::string_view magic, std::span<const std::byte> bytes) {
  const auto expected = std::as_bytes(std::span(magic));
  const auto n = std::min(bytes.size(), expected.size());
  return std::ranges::equal(bytes.first(n), expected.first(n));
}

Bytes encode_handshake(std::string_view magic, Handshake handshake) {
  return Writer().raw(magic).u16(handshake.version).u16(handshake.kind).u32(handshake.bytes).take();
}

Bytes encode_refusal(Errc code, std::string_view text) {
  text = text.substr(0, max_refusal_bytes);
  const Handshake handshake{.kind = static_cast<std::uint16_t>(1 + static_cast<unsigned>(code)),
                            .bytes = static_cast<std::uint32_t>(text.size())};
  return Writer().raw(encode_handshake(server_magic, handshake)).raw(text).take();
}

Handshake decode_handshake(std::span<const std::byte> bytes) {
  Reader in(bytes, Errc::invalid_argument, "store: a handshake");
  in.raw(client_magic.size());
  Handshake handshake;
  handshake.version = in.u16();
  handshake.kind = in.u16();
  handshake.bytes = in.u32();
  return handshake;
}

Bytes encode_frame_header(const Frame& frame, std::size_t body_bytes) {
  return Writer()
      .u32(static_cast<std::uint32_t>(body_bytes))
      .u8(frame.kind)
      .u8(frame.code)
      .u16(0)
      .u64(frame.id)
      .take();
}

void FrameReader::feed(std::span<const std::byte> bytes) {
  const auto skipped = std::min(skip_, bytes.size());
  skip_ -= skipped;
  bytes = bytes.subspan(skipped);
  // The buffer of a larger frame is released after the frame.
  constexpr std::size_t keep = std::size_t{256} << 10;
  if (from_ == buffer_.size() && buffer_.capacity() > keep)
    buffer_ = Bytes();
  else
    buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(from_));
  from_ = 0;
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

std::optional<Frame> FrameReader::header(std::size_t& body_bytes) const {
  if (buffered() < frame_header_bytes) return std::nullopt;
  const auto bytes = std::span(buffer_).subspan(from_, frame_header_bytes);
  Reader in(bytes, Errc::invalid_argument, "store: the header of a frame");
  body_bytes = in.u32();
  Frame frame;
  frame.kind = in.u8();
  frame.code = in.u8();
  in.u16();
  frame.id = in.u64();
  return frame;
}

std::optional<Frame> FrameReader::next() {
  std::size_t body_bytes = 0;
  auto frame = header(body_bytes);
  if (!frame) return std::nullopt;
  if (body_bytes > max_body_bytes_)
    failf(Errc::invalid_argument,
          "store: the header of a frame gives {} bytes; at most {} are allowed", body_bytes,
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
  const Frame header{.kind = static_cast<std::uint8_t>(request.verb), .id = request.id};
  Writer out;
  out.reserve(frame_header_bytes + size);
  out.raw(encode_frame_header(header, size)).text(request.key);
  if (has_expected) out.block(request.expected);
  if (has_value) out.block(request.value);
  if (has_number(request.verb)) out.i64(request.number);
  return out.take();
}

Request decode_request(const Frame& frame) {
  const auto verb = static_cast<Verb>(frame.kind);
  if (verb < Verb::set || verb > Verb::erase)
    failf(Errc::invalid_argument, "store: request {} is not known to version {} of the protocol",
          frame.kind, store_version);
  Reader in(frame.body, Errc::invalid_argument, "store: the body of a request");
  Request request{.verb = verb, .id = frame.id};
  request.key = in.text();
  if (verb == Verb::compare_set) request.expected = in.block();
  if (verb == Verb::set || verb == Verb::compare_set) request.value = in.block();
  if (has_number(verb)) request.number = in.i64();
  in.end();
  return request;
}

}  // namespace tutti::internal
