#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/host_state.hpp"
#include "backend/mailbox.hpp"
#include "group.hpp"
#include "pairs.hpp"

namespace tutti::backend::mesh {

class Receives;

/// A receive whose send is not known yet. Afterwards it is the message of that send.
class QueuedReceive final : public internal::HostState {
 public:
  QueuedReceive(std::shared_ptr<internal::CallQueue> queue, std::shared_ptr<Receives> receives)
      : HostState(std::move(queue)), receives_(std::move(receives)) {}

  /// The message that this receive has become. Once.
  void become(std::shared_ptr<WorkState> message);

  bool done() const noexcept override;
  bool wait_until(Deadline deadline) override;
  std::exception_ptr error() const noexcept override;
  std::shared_ptr<WorkState> then(std::function<void()> next) override;
  std::shared_ptr<WorkState> on_done(std::function<void(const Error*)> f) override;
  bool withdraw(const Error& why) noexcept override;

 private:
  std::shared_ptr<WorkState> message() const noexcept;
  void follow();  // Finishes this when its message ends.

  std::shared_ptr<Receives> receives_;
  mutable std::mutex message_mutex_;
  std::shared_ptr<WorkState> message_;
  bool follows_ = false;
};

/// The receives of a group from any rank. A message's slot has the number of its send, so a receive
/// is posted once it is known which send it takes: the next one of a sender that the transport
/// reports as sent. Until then the receives with the same tag that were posted after it wait, too:
/// one of them may be of that sender.
///
/// Sends and receives of a pair have equal numbers only while no receive from any rank has taken a
/// send; number() corrects a receive's. Called from any thread.
class Receives : public std::enable_shared_from_this<Receives> {
 public:
  /// Posts a receive from a known rank. @throws Error, std::bad_alloc.
  using Post =
      std::function<std::shared_ptr<WorkState>(const Op& op, Deadline limit, std::string text)>;

  Receives(std::shared_ptr<internal::CallQueue> queue, std::shared_ptr<const Group> group,
           std::shared_ptr<internal::Mailbox> to_itself,
           std::weak_ptr<WaiterThreads> waiter_threads, Post post);

  /// Sets op.seq to the number of the send that a receive from a named rank takes. False: it has to
  /// wait for one before it: add() it.
  bool number(Op& op);
  /// Adds a receive. `waited_for`: its caller waits at once; otherwise a thread looks for its send.
  /// `text`: MessageCall::text.
  std::shared_ptr<WorkState> add(const Op& op, Deadline limit, bool waited_for, std::string text);
  /// Adds a receive that this rank has refused: the send that it would take is refused.
  void refuse(const Op& op, Deadline limit, const Error& why);
  /// Posts the receives whose sends are known by now. False if none is left.
  bool progress() noexcept;
  bool withdraw(const QueuedReceive& receive) noexcept;  ///< True if it was waiting.
  /// Ends all with `why`. Afterwards nothing is posted. True if there were some.
  bool close(const Error& why) noexcept;

 private:
  struct Shown;
  class Candidate;
  struct Entry {
    Op op;
    Deadline limit;
    std::shared_ptr<QueuedReceive> state{};  // Null if this rank refused the receive.
    std::string text{};
    std::optional<Error> why{};  // Of the refusal.
    std::optional<TransportError> failure{};
  };
  /// The receives with one tag, oldest first.
  struct Line {
    std::deque<Entry> entries{};
    std::vector<std::shared_ptr<Candidate>> candidates{};  // Of the first, if it is from any rank.
  };
  struct Sends {
    std::uint64_t named = 0;  // The number of receives that named the sender.
    std::uint64_t any = 0;    // The number of its sends that receives from any rank have taken.
  };

  // Under the lock.
  void enter(Entry entry, bool waited_for);
  void number_now(Op& op);
  std::optional<Entry> next();
  std::optional<Entry> expired(Line& line);
  bool resolve(Line& line);
  void look_for_sends(Line& line);
  void drop_candidates(Line& line) noexcept;

  void apply(Entry& entry) noexcept;
  void end(Entry& entry) noexcept;
  void drive();

  const std::shared_ptr<internal::CallQueue> queue_;
  const std::shared_ptr<const Group> group_;
  const std::shared_ptr<internal::Mailbox> to_itself_;
  const std::weak_ptr<WaiterThreads> waiter_threads_;
  const Post post_;

  std::mutex mutex_;
  std::condition_variable idle_;
  int active_ = 0;  // Threads in apply().
  bool closed_ = false;
  bool driven_ = false;  // A thread runs drive().
  int first_ = 0;        // The rank that is asked first, so that none waits for ever.
  std::map<int, Line> lines_;
  std::map<std::pair<int, int>, Sends> sends_;  // By sender and tag.
};

}  // namespace tutti::backend::mesh
