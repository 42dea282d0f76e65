#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include <tutti/deadline.hpp>

#include "backend/waiting.hpp"
#include "mesh/event.hpp"

namespace tutti::backend::mesh {

/// The connections of one rank to all others, over a transport without threads of its own. Called
/// from any thread.
///
/// All state is under one lock. The threads that wait make the progress: one of them at a time, and
/// the others sleep until it has ended their request or its own. It gives the lock to a thread that
/// posts a request.
class Links {
 public:
  /// A message in flight. Its memory, and the message's, stay valid until it has ended.
  struct Request {
    int peer = -1;
    bool sends = false;
    bool ended = true;
    bool failed = false;       ///< The connection ended first.
    std::size_t received = 0;  ///< The length of the peer's message, even if it did not fit.
  };
  enum class Outcome : std::uint8_t {
    ended,
    late,       ///< The deadline passed.
    lost,       ///< The connection to the peer ended.
    cancelled,  ///< The flag was set.
    closed,     ///< The links were closed.
  };

  virtual ~Links() = default;
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;
  /// The number of ranks that share so many cores, by which threads decide how they wait.
  void set_polling(std::size_t ranks, std::size_t cores) {
    polling_.emplace(ranks, cores, time_of_a_poll);
  }

  static constexpr bool wakes_a_thread = false;  ///< collectives::Wire::wakes_a_thread().
  /// `cancelled` may be set by any thread, and is looked at in intervals of 20 ms at the most.
  Outcome wait(Request& request, Deadline limit, const std::atomic<bool>& cancelled);
  /// Called by any thread after it has set the flag of a request, maybe before send() or recv().
  void cancel(Request& /*request*/) noexcept {}
  /// Mesh::end_refused(). Slots are of one call, and messages of the call are withdrawn one by one
  /// when they are destroyed.
  bool end_refused(std::uint64_t /*call*/, std::span<const int> /*peers*/, Deadline /*limit*/) {
    return true;
  }
  /// Makes progress, and tells the thread in attend() that a request has been posted for which no
  /// thread waits.
  void alert() noexcept;
  /// Ends the present or the next attend().
  void interrupt() noexcept { event_.set(); }
  /// Makes progress for requests for which no thread waits. Blocks until interrupt() or the end of
  /// a connection, at most for `time`.
  void attend(std::chrono::milliseconds time);

 protected:
  /// `ended(peer)` is called when the connection to a peer has ended, with the lock, so it must not
  /// call this object.
  explicit Links(std::function<void(int peer)> ended) : ended_(std::move(ended)) {}

  /// Holds the lock. A thread that makes progress gives it to a thread that wants it.
  class Lock {
   public:
    explicit Lock(Links& links) : links_(links), lock_(links.mutex_, std::try_to_lock) {
      if (!lock_) take();
    }
    ~Lock() {
      if (links_.has_lines_) links_.log_lines(lock_);
    }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
    std::unique_lock<std::mutex>& get() noexcept { return lock_; }
    /// Locks again, before a thread that makes progress.
    void take();
    void give_way() {
      if (links_.wanting_.load(std::memory_order_relaxed) != 0) yield();
    }

   private:
    void yield();
    Links& links_;
    std::unique_lock<std::mutex> lock_;
  };

  /// Moves what can be moved without waiting. True if anything was.
  virtual bool progress() noexcept = 0;
  /// Receives what a lost peer has sent.
  virtual void drain(int /*peer*/) noexcept {}
  /// Something has to be moved that is of no request.
  virtual bool has_more() const noexcept { return false; }
  virtual bool is_lost(int peer) const noexcept = 0;
  /// Sleeps without the lock, until a message can move if `moves`. `watches`: called by the thread
  /// in attend(), which event_ and the end of a connection wake; wake_ wakes others.
  virtual void sleep(Lock& lock, bool watches, bool moves, std::chrono::milliseconds time) = 0;

  /// Called by the thread in attend(), each time before it sleeps.
  virtual void serve() noexcept {}
  /// Calls the logger, after `lock` has been unlocked, so that it may call this object.
  virtual void log_lines(std::unique_lock<std::mutex>& /*lock*/) noexcept {}

  void begin(Request& request, int peer, bool sends) noexcept {
    request.peer = peer;
    request.sends = sends;
    request.ended = request.failed = false;
    ++pending_;
  }
  void end(Request& request, bool failed) noexcept {
    request.failed = failed;
    request.ended = true;
    --pending_;
    if (sleeping_ > 0) changed_.notify_all();
    // Another thread may have taken the event for which this one sleeps.
    if (waiter_asleep_ && !std::exchange(woken_, true)) wake_.set();
  }
  /// Has the thread in attend() move what has_more() tells.
  void need_watcher() noexcept {
    alerted_ = true;
    event_.set();
  }
  void report_end(int peer) noexcept {
    ended_(peer);
    event_.set();
    if (sleeping_ > 0) changed_.notify_all();
  }
  /// Begins to close: wakes all threads, and waits until none makes progress or sleeps without the
  /// lock. False if another thread has called it; then it waits for set_closed().
  bool stop(Lock& lock) noexcept;
  void set_closed() noexcept;
  bool is_closing() const noexcept { return closing_; }

 private:
  std::function<void(int peer)> ended_;
  /// A system call or two. Ranks that share a core would otherwise wait for each other's polls.
  static constexpr std::chrono::nanoseconds time_of_a_poll{400};

  std::optional<internal::Polling> polling_{std::in_place, 2, 1};

 protected:
  bool has_lines_ = false;  // For the logger.
  bool idle_ = false;       // attend() has begun to wait since this was cleared.
  Event event_;             // For the thread in attend().
  Event wake_;              // For a thread that waits; stays set while the links are closed.

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<int> wanting_{0};  // Threads that want the lock.
  bool progressing_ = false;     // A thread that waits makes progress.
  int asleep_ = 0;               // Threads in sleep().
  int sleeping_ = 0;             // They sleep on changed_.
  int pending_ = 0;              // Requests that have not ended.
  bool waiter_asleep_ = false;   // The thread that makes progress is one of them.
  bool woken_ = false;           // wake_ is set.
  bool alerted_ = false;         // The thread in attend() knows that there may be requests.
  bool closing_ = false;
  bool is_closed_ = false;
};

}  // namespace tutti::backend::mesh
