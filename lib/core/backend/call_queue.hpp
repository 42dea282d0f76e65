#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include <tutti/backend/backend.hpp>

#include "values/fork_guard.hpp"

namespace tutti::internal {

/// The order of one group's collectives on one rank. A call runs after every call with a smaller
/// number, on its caller's thread or on the group's worker. Between calls the worker runs
/// continuations: the functions of Work::then() and Work::on_done(). All functions from any thread.
class CallQueue : public std::enable_shared_from_this<CallQueue> {
 public:
  /// A job for the worker. The queue keeps it alive until it has run.
  class Job {
   public:
    virtual ~Job() = default;
    virtual void run() noexcept = 0;
    /// Called instead of run() if the job will not run; not called for a job of submit_at().
    virtual void drop(const Error& why) noexcept = 0;
    /// True if a timed job has nothing left to do.
    virtual bool is_over() const noexcept { return false; }
  };

  CallQueue();
  CallQueue(const CallQueue&) = delete;
  CallQueue& operator=(const CallQueue&) = delete;

  /// Blocks until every number below call.seq has ended. @throws Error timeout at the call's
  /// deadline, and the error of fail(). @return the call's deadline; not set if enter() did not
  /// wait.
  Deadline enter(const Call& call) {
    const bool waits = turn_.load(std::memory_order_acquire) != call.seq || broken_.load();
    return waits ? enter_slow(call) : Deadline();
  }
  /// Ends the number. Has to be called even if the number's call failed.
  void leave(std::uint64_t seq) noexcept {
    turn_.store(seq + 1);
    if (attention_.load() != 0) advance();
  }
  /// A call's turn, from enter() to leave().
  class Turn {
   public:
    Turn(CallQueue& queue, const Call& call)
        : queue_(queue), seq_(call.seq), limit_(queue.enter(call)) {}
    ~Turn() { queue_.leave(seq_); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    /// The call's deadline; not set if enter() did not wait.
    Deadline limit() const noexcept { return limit_; }

   private:
    CallQueue& queue_;
    std::uint64_t seq_;
    Deadline limit_;
  };
  /// Declares that no call will enter with this number.
  void skip(std::uint64_t seq) noexcept;
  /// Declares that no call will enter with a number below `seq`. No call has entered.
  void skip_to(std::uint64_t seq) noexcept;

  /// Runs `job` on the worker once all numbers below `seq` have ended. The job calls leave(seq).
  /// @throws Error aborted after fail() or stop(), resource_exhausted if the worker cannot start.
  void submit(std::uint64_t seq, std::shared_ptr<Job> job);
  /// True if this thread runs a continuation of this queue. A blocking call there would wait for
  /// itself.
  bool in_continuation() const noexcept;
  /// Runs `job` on the worker before the next numbered job. Drops it on this thread if the worker
  /// cannot start or has been stopped.
  void submit(std::shared_ptr<Job> job) noexcept;
  /// Runs `job` on the worker at this moment; never if the worker ends before it.
  /// @throws Error resource_exhausted.
  void submit_at(Deadline moment, std::shared_ptr<Job> job);
  /// Starts the worker, so that a later submit(job) cannot fail for lack of a thread. @throws Error
  /// resource_exhausted.
  void start();

  /// Ends every wait for a turn with this error and drops all numbered jobs. Later calls of enter()
  /// and submit(seq, job) throw. The first error applies.
  void fail(const Error& why) noexcept;
  /// Calls `listener` with the error of the first fail(), at once if it has failed; not with that
  /// of stop(). On any thread, without a lock. Must not refer to its owner, which may be destroyed
  /// meanwhile.
  void on_failure(std::function<void(const Error& why)> listener);
  /// True in a forked child, which has no worker: pending calls never end there.
  bool forked() const noexcept { return fork_guard_.forked(); }
  /// Fails the queue with group_destroyed(), then waits until the worker has run the submitted
  /// continuations and has ended. On the worker's own thread it does not wait.
  void stop() noexcept;

 private:
  struct Numbered {
    std::uint64_t seq;
    std::shared_ptr<Job> job;
  };
  struct Timed {
    Deadline::Clock::time_point moment;
    std::shared_ptr<Job> job;
  };
  void take_due();  // Under the lock.
  Deadline enter_slow(const Call& call);
  void advance() noexcept;
  void start_worker();  // Under the lock.
  void work();

  ForkGuard fork_guard_;
  std::atomic<std::uint64_t> turn_{0};
  /// Number of threads that wait for a turn, of jobs that do, and of skipped numbers. If 0, leave()
  /// needs no lock and wakes no thread. An idle worker waits for no turn.
  std::atomic<std::uint64_t> attention_{0};
  std::atomic<bool> broken_{false};

  std::mutex mutex_;
  std::condition_variable moved_;
  std::optional<Error> error_;
  std::function<void(const Error& why)> listener_;
  std::set<std::uint64_t> skipped_;
  // Short vectors, erased at the front. They keep their capacity, so a steady state allocates
  // nothing.
  std::vector<Numbered> numbered_;  // Sorted by number: threads may submit in another order.
  std::vector<std::shared_ptr<Job>> soon_;
  std::vector<Timed> timed_;     // By moment.
  std::size_t most_timed_ = 64;  // At this size of timed_, jobs that are over are erased.
  bool stop_ = false;
  std::atomic<bool> running_{false};  // The worker has started. Written under the lock.
  std::thread worker_;
};

}  // namespace tutti::internal
