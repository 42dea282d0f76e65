#pragma once

#include <cstddef>

namespace tutti::collectives {

/// The messages of one collective call on one rank. Backends that move bytes implement it. Messages
/// between two ranks arrive in the order of sending. An exception of any function ends the
/// algorithm.
class Wire {
 public:
  virtual ~Wire() = default;
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  /// True if a message costs two switches between threads, because a thread of the transport moves
  /// it. False if the waiting thread moves it: then algorithms with more and smaller messages pay
  /// earlier. Equal on all ranks.
  virtual bool wakes_a_thread() const noexcept = 0;

  /// Begins to send 0 to max_message bytes, which must not change until wait_sends().
  virtual void send(int to, const void* data, std::size_t bytes) = 0;
  /// Begins to receive a message of this length.
  virtual void recv(int from, void* data, std::size_t bytes) = 0;
  /// Begins to receive a message of at most `bytes`. The received length is not reported.
  virtual void recv_at_most(int from, void* data, std::size_t bytes) = 0;
  /// Waits for the oldest receive not yet waited for.
  virtual void wait_recv() = 0;
  /// Waits for sends, oldest first, until at most `left` have not ended.
  virtual void wait_sends(std::size_t left = 0) = 0;
  /// Returns uninitialised memory for this collective. The next scratch() may free it.
  virtual std::byte* scratch(std::size_t bytes) = 0;
};

/// The largest message, for which a message's fixed cost is negligible.
inline constexpr std::size_t max_message = std::size_t{4} << 20;
/// The message size of algorithms that forward or reduce. Large enough for a small fixed cost, and
/// small enough to forward or reduce one message while the next ones arrive.
inline constexpr std::size_t segment = std::size_t{256} << 10;

}  // namespace tutti::collectives
