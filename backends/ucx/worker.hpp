#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/deadline.hpp>

#include "backend/waiting.hpp"
#include "config.hpp"
#include "mesh/event.hpp"
#include "ucx_api.hpp"

namespace tutti::backend::ucx {

/// A UCP context of one rank, its worker, and an endpoint to every other rank. Called from any
/// thread.
///
/// All calls of UCX are made under one lock, so that UCX needs none of its own. The threads that
/// wait make the progress: one of them at a time, the others sleep until it has ended their request
/// or its own. It gives the lock to a thread that posts a request. UCX's log lines go to the logger
/// without the lock, so the logger may call this object.
class Worker {
 public:
  /// A message in flight. Its memory, and the message's, stay valid until it has ended.
  struct Request {
    int peer = -1;
    ucp_tag_t tag = 0;
    void* handle = nullptr;
    bool sends = false;
    bool ended = true;
    ucs_status_t status = UCS_OK;
    std::size_t received = 0;  ///< The length of the peer's message, even if it did not fit.
    Worker* worker = nullptr;
    Request* before = nullptr;  ///< In the worker's list.
    Request* after = nullptr;
  };
  enum class Outcome : std::uint8_t {
    ended,      ///< The status of the request tells how.
    late,       ///< The deadline passed.
    lost,       ///< The connection to the peer ended.
    cancelled,  ///< The flag was set.
    closed,     ///< close() was called.
  };

  /// `ended(peer)` is called when the connection to a peer has ended, with the lock, so it must not
  /// call this object. @throws Error backend with UCX's reason.
  Worker(const UcxApi& api, int rank, int size, const Transports& transports, Logger logger,
         std::function<void(int peer)> ended);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(endpoints_.size()); }
  /// The number of ranks that share so many cores, by which threads decide how they wait.
  void set_polling(std::size_t ranks, std::size_t cores);

  /// From now on a send ends only when its message has been matched.
  void set_synchronous() noexcept { synchronous_ = true; }

  /// The address to which peers connect.
  std::string address() const;
  /// Reports that a peer has died; for transports that do not detect it.
  void set_lost(int peer);
  /// Makes an endpoint, without waiting for the peer. `address` is the peer's.
  /// @throws Error backend with UCX's reason.
  void connect(int peer, std::string_view address);
  /// The transports of all endpoints: "tcp/eth0, posix/memory".
  std::string transports() const;

  /// The tag of a message from this rank. `slot`: a hash that is equal on both sides.
  static ucp_tag_t tag_of(int sender, std::uint64_t slot) noexcept;

  void send(Request& request, int peer, ucp_tag_t tag, const void* data, std::size_t bytes);
  void recv(Request& request, int peer, ucp_tag_t tag, void* data, std::size_t bytes);
  /// Makes progress. True if a message with this tag has arrived that no receive has taken.
  bool has_arrived(ucp_tag_t tag);
  /// `cancelled` may be set by any thread, and is looked at in intervals of 20 ms at the most.
  Outcome wait(Request& request, Deadline limit, const std::atomic<bool>& cancelled);
  /// Ends a request before its time: its message will not be matched, and is discarded if it has
  /// been sent. False if that has not been done by `limit`.
  bool withdraw(Request& request, Deadline limit);

  /// Tells the thread in attend() that a request has been posted for which no thread waits.
  void alert() noexcept;
  /// Ends the present or the next attend().
  void interrupt() noexcept { event_.set(); }
  /// Makes progress for requests for which no thread waits, and discards messages that peers have
  /// withdrawn. Blocks until interrupt() or the end of a connection, at most for `time`.
  void attend(std::chrono::milliseconds time);

  /// Waits until posted messages have been sent.
  void flush(Deadline limit);
  /// The sender of a message that this rank has not received; empty if there is none.
  std::optional<int> unreceived();
  /// Ends all connections and requests. UCX does not access the memory of a request after that.
  void close() noexcept;

 private:
  // A tag: the sender's rank in the upper 16 bits, a hash in the others. Hash 0 is the tag of a
  // withdrawal, whose 8 bytes are the tag of the withdrawn message.
  static constexpr unsigned rank_shift = 48;
  static constexpr ucp_tag_t hash_mask = (ucp_tag_t{1} << rank_shift) - 1;

  static ucp_tag_t withdrawal_of(int sender) {
    return static_cast<ucp_tag_t>(sender) << rank_shift;
  }

  /// Holds the lock. A thread that makes progress gives it to a thread that wants it.
  class Lock {
   public:
    explicit Lock(Worker& worker)
        : worker_(worker), lock_(worker.mutex_, std::try_to_lock), log_(worker.collector_) {
      if (!lock_) take();
    }
    ~Lock() {
      log_.reset();
      if (!worker_.lines_.empty()) deliver();
    }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
    std::unique_lock<std::mutex>& get() noexcept { return lock_; }
    /// Locks again, and asks the thread that makes progress for the lock. That thread would
    /// otherwise keep it: while UCX has events that it cannot handle, because a peer has died, the
    /// thread does not sleep.
    void take() {
      worker_.wanting_.fetch_add(1);
      lock_.lock();
      worker_.wanting_.fetch_sub(1);
    }
    /// Calls the logger with UCX's lines, without the lock. The caller makes no progress: the
    /// logger may close the worker, which waits for that.
    void log_lines() {
      if (worker_.lines_.empty()) return;
      log_.reset();
      deliver();
      lock_.lock();
      log_.emplace(worker_.collector_);
    }
    void give_way() {
      if (worker_.wanting_.load(std::memory_order_relaxed) != 0) yield();
    }

   private:
    void yield();
    void deliver() noexcept;

    Worker& worker_;
    std::unique_lock<std::mutex> lock_;
    std::optional<LogTo> log_;
  };

  /// A message of withdraw().
  struct Discarded {
    enum class Kind : std::uint8_t { withdrawal_sent, withdrawal_received, message_received };
    Kind kind{};
    ucp_tag_t tag = 0;  // The memory of a withdrawal.
    Request request{};
  };

  static ucp_request_param_t parameters(Request& request);
  static void ended(void* handle, ucs_status_t status, void* request);
  static void received(void* handle, ucs_status_t status, const ucp_tag_recv_info_t* info,
                       void* request);
  static void failed(void* endpoint, ucp_ep_h handle, ucs_status_t status);

  // Under the lock.
  struct Endpoint {
    Worker* worker = nullptr;
    int peer = -1;
    ucp_ep_h handle = nullptr;
    bool lost = false;
  };

  void lose(Endpoint& endpoint);
  void catch_up();
  void drain();
  void begin(Request& request, ucs_status_ptr_t handle);
  void end(Request& request, ucs_status_t status);
  ucs_status_ptr_t post_send(Request& request, const void* data, std::size_t bytes);
  bool is_lost(const Request& request) const noexcept;
  void progress(Lock& lock, const Request& request, const std::atomic<bool>& cancelled);
  void sleep(Lock& lock, int other, std::chrono::milliseconds time);
  void serve_withdrawals();
  bool discard(ucp_tag_t tag, ucp_tag_t mask, bool is_withdrawal);
  void close_endpoints();
  void drive(ucs_status_ptr_t handle, Deadline limit);

  const UcxApi& api_;
  int rank_;
  bool report_ends_;
  bool synchronous_ = false;
  Logger logger_;
  Logger collector_;  // Adds UCX's lines to lines_.
  std::function<void(int peer)> ended_;
  std::optional<internal::Polling> polling_;
  mesh::Event event_;  // For the thread in attend().

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<int> wanting_{0};  // Threads that want the lock.
  bool progressing_ = false;     // A thread that waits makes progress.
  int polling_threads_ = 0;      // They poll the worker's descriptor without the lock.
  int sleeping_ = 0;             // They sleep on changed_.
  bool alerted_ = false;         // The thread in attend() knows that there may be requests.
  bool idle_ = false;            // No message for up to 100 ms.
  bool closing_ = false;
  std::vector<std::pair<LogLevel, std::string>> lines_;
  std::size_t lines_left_out_ = 0;  // By close(), after the first one.
  Request* in_flight_ = nullptr;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;  // Null after close().
  int descriptor_ = -1;
  std::vector<Endpoint> endpoints_;       // By rank; none to this rank.
  std::vector<ucs_status_ptr_t> ends_{};  // Of flush() and close(); has room for all endpoints.
  std::list<Discarded> discarded_;
};

}  // namespace tutti::backend::ucx
