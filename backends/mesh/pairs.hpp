#pragma once

#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "backend/host_state.hpp"
#include "group.hpp"

namespace tutti::backend::mesh {

/// Threads that wait for messages whose Work is polled (done()) or has a continuation, because a
/// mesh cannot be polled. One thread per message of this kind in flight; usually none.
class WaiterThreads {
 public:
  /// Waits for the threads, unless it runs on one of them.
  ~WaiterThreads();
  /// Calls `wait` on one of the threads. @throws Error resource_exhausted if a thread cannot start;
  /// `wait` is then never called.
  void run(std::function<void()> wait);

 private:
  struct Queue {
    std::mutex mutex;
    std::condition_variable changed;
    std::list<std::function<void()>> waits;
    std::size_t idle = 0;
    bool stop = false;
  };
  static void work(Queue& queue);

  std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();  // Shared with the threads.
  std::vector<std::thread> threads_;                          // Under the lock of the queue.
};

/// A send or receive that has been posted.
class PairState : public internal::HostState {
 public:
  PairState(std::shared_ptr<internal::CallQueue> queue, std::shared_ptr<const Group> group,
            std::weak_ptr<WaiterThreads> waiter_threads, const Op& op, Deadline limit,
            std::string text);

  /// Posts the message to or from another rank. Reports errors in error(). @throws std::bad_alloc
  void post();

  bool done() const noexcept override;
  bool wait_until(Deadline deadline) override;
  std::shared_ptr<WorkState> then(std::function<void()> next) override;
  std::shared_ptr<WorkState> on_done(std::function<void(const Error*)> f) override;
  /// Drops a message that only one side has posted. Its slot is a hash of both sides' arguments, so
  /// no later message matches it.
  bool withdraw(const Error& why) noexcept override;
  /// Cancels the message because its group ends. True if the message had not ended.
  bool cancel() noexcept;

  const Op& op() const noexcept { return op_; }

 private:
  /// True for one caller, which then waits for the message or drops it.
  bool claim() noexcept;
  void wait_here() noexcept;
  /// Starts a thread that waits for the message. Returns false when no thread can start.
  bool hand_over() noexcept;
  /// Starts a thread as hand_over() does, for a continuation. @throws Error resource_exhausted.
  void require_watcher();
  void end(std::exception_ptr error) noexcept;
  void stop_waiting(const Error& why) noexcept;

  std::shared_ptr<const Group> group_;
  std::weak_ptr<WaiterThreads> waiter_threads_;
  Op op_;
  Deadline limit_;
  std::string text_;   // MessageCall::text.
  std::byte token_{};  // The byte that an empty message carries.
  std::mutex message_mutex_;
  std::shared_ptr<Message> message_;
  bool claimed_ = false;          // Never false again.
  std::optional<Error> instead_;  // The error of a cancelled message.
};

}  // namespace tutti::backend::mesh
