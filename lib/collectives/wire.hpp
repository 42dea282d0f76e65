#pragma once

#include <cstddef>

namespace tutti::backend::gloo {

/// What an algorithm sees of the transport: the messages of one call of one group on this rank.
/// Between two ranks they arrive in the order in which they were sent. Every function throws when
/// the call cannot go on; then the algorithm is over.
class Wire {
 public:
  virtual ~Wire() = default;
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;

  /// Begins to send 0 to max_message bytes, which must not change until wait_sends().
  virtual void send(int to, const void* data, std::size_t bytes) = 0;
  /// Begins to receive a message of at most this size. Nobody tells how long it was.
  virtual void recv(int from, void* data, std::size_t bytes) = 0;
  /// Waits for the oldest receive that was not yet waited for.
  virtual void wait_recv() = 0;
  /// Waits until at most `left` sends are under way, the oldest first.
  virtual void wait_sends(std::size_t left = 0) = 0;
  /// Memory for this call; another one may move it.
  virtual std::byte* scratch(std::size_t bytes) = 0;
};

/// Large enough that a message's fixed cost does not count at all.
inline constexpr std::size_t max_message = std::size_t{4} << 20;
/// Large enough that it counts little, small enough to be forwarded, or reduced, while the rest is
/// still coming.
inline constexpr std::size_t segment = std::size_t{256} << 10;

}  // namespace tutti::backend::gloo
