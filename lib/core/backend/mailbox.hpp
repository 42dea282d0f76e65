#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include <tutti/backend/backend.hpp>

#include "backend/group_names.hpp"
#include "backend/host_state.hpp"

namespace tutti::internal {

/// Unmatched sends and receives between ranks of one process. The second of two matching calls
/// copies the bytes and ends both. All functions from any thread.
class Mailbox {
 public:
  /// A send or receive. done() and wait_until() check its deadline; the group's worker checks it
  /// while a continuation waits for the message.
  class Message;

  /// `broken` breaks the group. It is called with the error of a message that reached its deadline
  /// or whose peer has left.
  Mailbox(GroupNames names, int size, std::function<void(const Error&)> broken);

  /// Matches the message of `rank`, or stores it until its peer's arrives. @throws std::bad_alloc;
  /// nothing has changed then.
  void post(const std::shared_ptr<Message>& message, int rank, const Call& call);
  /// The same for a message that `rank` refused: the peer's message ends with the error. Without
  /// memory to store it, breaks the group.
  void refuse(const Op& op, int rank, const Error& why) noexcept;
  /// True if a send of `rank` to itself waits for a receive with this tag.
  bool has_send(int rank, int tag) noexcept;
  /// Records that `rank` has left. Messages that need it, posted before or later, end with
  /// peer_lost.
  void leave(int rank) noexcept;
  /// Ends every message, including later ones. The first cause applies.
  void fail(const Error& cause) noexcept;

 private:
  struct Post {
    Op op;
    int rank = 0;
    std::uint64_t age = 0;  // Counts stored messages; the smallest is the oldest.
    std::string text;       // The reason of a refusal, or the description of a named message.
    std::shared_ptr<HostState> state;  // Null if the rank refused the message.
  };
  struct Box {
    std::vector<Post> sends;
    std::vector<Post> recvs;
  };
  // Empty boxes are kept up to this number of boxes, so that a steady state allocates nothing.
  static constexpr std::size_t kept_boxes = 256;

  using Queue = std::vector<Post>;        // Oldest first; rarely more than one.
  using Key = std::tuple<int, int, int>;  // Sender, or any_peer; receiver; tag.

  void add(Post post);
  std::optional<Post> match(const Post& post);  // Under the lock.
  /// Takes one message for which `ends(key)` holds; empty: there is none. Under the lock.
  template <typename Ends>
  std::optional<Post> take(const Ends& ends);
  // Under the lock. True if all other ranks have left; false in a group of one.
  bool is_alone(int rank) const noexcept;
  Error has_left(int rank) const noexcept;
  void complete(const Post& send, const Post& recv) const noexcept;
  bool withdraw(const Message& message) noexcept;  // True if the message was waiting.

  const GroupNames names_;
  const std::function<void(const Error&)> broken_;
  std::mutex mutex_;
  std::optional<Error> cause_;
  std::vector<bool> gone_;
  std::map<Key, Box> boxes_;
  std::uint64_t age_ = 0;
};

class Mailbox::Message final : public HostState {
 public:
  Message(std::shared_ptr<CallQueue> queue, std::shared_ptr<Mailbox> box, const Op& op,
          Deadline limit)
      : HostState(std::move(queue)), box_(std::move(box)), op_(op), limit_(limit) {}

  bool done() const noexcept override;
  bool wait_until(Deadline deadline) override;
  std::shared_ptr<WorkState> then(std::function<void()> next) override;
  std::shared_ptr<WorkState> on_done(std::function<void(const Error*)> f) override;
  bool withdraw(const Error& why) noexcept override;
  const Op& op() const noexcept { return op_; }

 private:
  class Expiry;
  void expire() noexcept;
  void watch_deadline();

  std::shared_ptr<Mailbox> box_;
  Op op_;
  Deadline limit_;
};

}  // namespace tutti::internal
