#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "memory/layout.hpp"

namespace tutti::backend::shm {

using namespace memory;

/// A part of the protocol of sends and receives (messages.hpp). The payload follows it in the ring.
struct alignas(cache_line) Frame {
  enum class Kind : std::uint32_t {
    request,         ///< A send, with its data if that is short.
    refused_send,    ///< A send that the sender refused. Payload: the reason.
    accept,          ///< The request has met its receive.
    data,            ///< A part of the data of an accepted request.
    differs,         ///< The receive has other arguments. Payload: the receive as text.
    explanation,     ///< The answer to `differs`. Payload: the send as text.
    refused_receive  ///< The receiver refused the receive. Payload: the reason.
  };
  Kind kind = Kind::request;
  std::int32_t tag = 0;
  std::uint64_t id = 0;           ///< Number of the request among those of its sender.
  std::uint64_t fingerprint = 0;  ///< Of a request.
  std::uint64_t bytes = 0;        ///< Of a request: the length of the whole array.
  std::uint64_t payload = 0;      ///< Bytes that follow.
};
static_assert(sizeof(Frame) == cache_line);

/// The sender's end of a ring.
class RingSender {
 public:
  RingSender(SharedRing& ring, std::size_t capacity) noexcept : ring_(&ring), capacity_(capacity) {}

  /// The bytes of payload for which there is room; 0 if there is no room for a frame. Empty if the
  /// receiver wrote an impossible number.
  std::optional<std::size_t> room() const noexcept;
  /// Appends a frame, for which there is room.
  void push(Frame frame, const void* payload) noexcept;

 private:
  SharedRing* ring_;
  std::size_t capacity_;
  std::uint64_t head_ = 0;  // Own copy: a peer may have written to the shared one.
};

/// The receiver's end of a ring. Numbers of the sender are copied once and checked.
class RingReceiver {
 public:
  enum class State : std::uint8_t { empty, frame, corrupt };

  RingReceiver(SharedRing& ring, std::size_t capacity) noexcept
      : ring_(&ring), capacity_(capacity) {}

  /// Looks for the next frame.
  State next(Frame& frame) noexcept;
  /// Copies the payload of the frame that next() found.
  void read(const Frame& frame, void* to) const noexcept;
  /// Releases the frame.
  void pop(const Frame& frame) noexcept;
  /// The bytes released so far.
  std::uint64_t position() const noexcept { return tail_; }

 private:
  SharedRing* ring_;
  std::size_t capacity_;
  std::uint64_t tail_ = 0;
};

}  // namespace tutti::backend::shm
