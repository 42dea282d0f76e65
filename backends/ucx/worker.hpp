#pragma once

#include <chrono>
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

#include "mesh/links.hpp"
#include "ucx_api.hpp"

namespace tutti::backend::ucx {

/// The transports that a worker may use.
struct Transports {
  std::string list{};  ///< The value of UCX_TLS.
  /// They report the end of a connection. UCX's shared memory does not.
  bool report_ends = true;
};

/// A process of this host.
struct Process {
  std::int64_t id = 0;
  std::uint64_t start = 0;  ///< Tells processes apart that had the same id.

  static Process own();
  bool is_alive() const;
};

/// A UCP context of one rank, its worker, and an endpoint to every other rank.
///
/// All calls of UCX are made under the lock, so that UCX needs none of its own. UCX's log lines go
/// to the logger without the lock, so the logger may call this object.
class Worker final : public mesh::Links {
 public:
  struct Request : mesh::Links::Request {
    ucp_tag_t tag = 0;
    void* handle = nullptr;
    ucs_status_t status = UCS_OK;
    Worker* worker = nullptr;
    Request* before = nullptr;  ///< In the worker's list.
    Request* after = nullptr;
  };

  /// `ended`: of Links. @throws Error backend with UCX's reason.
  Worker(const UcxApi& api, int rank, int size, const Transports& transports, Logger logger,
         std::function<void(int peer)> ended);
  ~Worker() override;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(endpoints_.size()); }

  /// From now on a send ends only when its message has been matched.
  void set_synchronous() noexcept { synchronous_ = true; }
  /// By rank, for transports that do not report ends: attend() looks whether they are alive. From
  /// now on close() tells the peers.
  void set_processes(std::vector<Process> processes) { processes_ = std::move(processes); }

  /// The address to which peers connect.
  std::string address() const;
  /// Makes an endpoint, without waiting for the peer. `address` is the peer's. False if no
  /// transport reaches it. @throws Error backend with UCX's reason.
  bool connect(int peer, std::string_view address);
  /// The transports of all endpoints: "rc_mlx5/mlx5_0:1, posix/memory". Before other threads use
  /// the worker.
  std::string transports() const;

  /// The message matches the peer's message with the same slot.
  void send(Request& request, int peer, std::uint64_t slot, const void* data, std::size_t bytes,
            bool in_call);
  void recv(Request& request, int peer, std::uint64_t slot, void* data, std::size_t bytes);
  /// Makes progress. True if a message with this slot has arrived that no receive has taken.
  bool has_arrived(int peer, std::uint64_t slot);
  /// Ends a request before its time: its message will not be matched, and is discarded if it has
  /// been sent. False if that has not been done within 2 s.
  bool withdraw(Request& request);

  /// Waits until posted messages have been sent.
  void flush(Deadline limit);
  /// The sender of a message that this rank has not received; empty if there is none.
  std::optional<int> unreceived();
  /// UCX ends broken connections itself.
  std::optional<Error> fault() { return std::nullopt; }
  /// Ends all connections and requests. UCX does not access the memory of a request after that.
  void close() noexcept;

 private:
  // A tag: the sender's rank in the upper 16 bits, a hash in the others. Hash 0 is the tag of a
  // withdrawal, whose 8 bytes are the tag of the withdrawn message; 0: the sender has closed.
  static constexpr unsigned rank_shift = 48;
  static constexpr ucp_tag_t hash_mask = (ucp_tag_t{1} << rank_shift) - 1;

  static ucp_tag_t withdrawal_of(int sender) {
    return static_cast<ucp_tag_t>(sender) << rank_shift;
  }

  /// The tag of a message from `sender`. `slot`: a hash that is equal on both sides.
  static ucp_tag_t tag_of(int sender, std::uint64_t slot) noexcept;

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
  void post(Request& request, int peer, ucp_tag_t tag, bool sends);
  void drain();
  void begin(Request& request, ucs_status_ptr_t handle);
  void end(Request& request, ucs_status_t status);
  ucs_status_ptr_t post_send(Request& request, const void* data, std::size_t bytes);
  bool progress() noexcept override;
  void drain(int peer) noexcept override;
  bool is_lost(int peer) const noexcept override {
    return endpoints_[static_cast<std::size_t>(peer)].lost;
  }
  void sleep(Lock& lock, bool watches, bool moves, std::chrono::milliseconds time) override;
  void serve() noexcept override;
  void discard_withdrawn();
  void log_lines(std::unique_lock<std::mutex>& lock) noexcept override;
  bool discard(ucp_tag_t tag, ucp_tag_t mask, bool is_withdrawal);
  void close_endpoints();
  void drive(ucs_status_ptr_t handle, Deadline limit);

  const UcxApi& api_;
  int rank_;
  bool report_ends_;
  bool synchronous_ = false;
  Logger logger_;
  Logger collector_;  // Adds UCX's lines to lines_.
  std::vector<Process> processes_;
  Deadline::Clock::time_point next_look_{};  // At them.

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
