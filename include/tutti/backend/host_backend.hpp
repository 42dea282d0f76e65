#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <tutti/backend/backend.hpp>

namespace [[gnu::visibility("default")]] tutti {

/// Base class of backends for host memory. Blocking calls run on the caller's thread, async calls
/// on a worker thread that starts with the first of them, both in the order of their numbers. Sends
/// and receives are posted at once. A derived class moves the bytes: it implements run(),
/// post_one() and publish(), with memory(), abort() and failure() of Backend.
///
/// A blocking call allocates nothing here. A blocking call inside then() or on_done() is refused.
/// If run() throws an error that breaks the group, abort() is called with its text: by this class
/// in an async call, by ProcessGroup in a blocking call.
class HostBackend : public Backend {
 public:
  // Of backends in the tree (lib/core/backend/host_calls.hpp).
  class [[gnu::visibility("hidden")]] Calls;
  class [[gnu::visibility("hidden")]] Posts;

  HostBackend(std::string group, int rank) : HostBackend(std::move(group), rank, rank) {}
  /// `shown_rank`: the number in errors of this rank, in a part of another group (WholeGroup),
  /// whose name is `group`.
  HostBackend(std::string group, int rank, int shown_rank);
  ~HostBackend() override;

  /// False for recv_any. True for custom reductions, for reductions that the library can compute
  /// (no avg in scans), and for every other operation.
  bool supports(Operation operation, DType dtype, ReduceOp::Kind kind) const noexcept override;
  Work launch(std::span<const Op> ops, const Call& call) override;
  void refuse(std::span<const Op> ops, const Call& call, const Error& why) noexcept final;

 protected:
  /// A send or receive in flight.
  struct Posted {
    std::shared_ptr<WorkState> state;  ///< For post_one() to return.
    /// Ends the message: null for success. Only the first call has an effect. May be called from
    /// any thread, even after the group is destroyed.
    std::function<void(const Error* error)> finish;
  };

  /// Runs the collectives among `ops`; skips sends and receives. Called in the order of the
  /// numbers. Blocks until call.limit() at the latest. @throws Error.
  virtual void run(std::span<const Op> ops, const Call& call) = 0;
  /// Posts the sends and receives among `ops` with post_one(), and adds them to `posted`; skips
  /// collectives. If it throws with `posted` empty, the call is refused; otherwise the group is
  /// aborted. Only backends in the tree override it.
  virtual void post(std::span<const Op> ops, const Call& call, Posts& posted);
  /// Posts one send or receive without waiting for the peer. Returns make_message()'s state, or
  /// null if the message has already ended. The message must end by `limit`. Default: throws
  /// Error unsupported.
  virtual std::shared_ptr<WorkState> post_one(const Op& op, const Call& call, Deadline limit);
  /// Tells the peers that this rank refused the call. Never blocks.
  virtual void publish(std::span<const Op> ops, const Call& call, const Error& why) noexcept = 0;

  /// Makes a message for post_one(). An error passed to finish() gets the location of `op`: group,
  /// operation, number, rank.
  Posted make_message(const Op& op, const Call& call);
  /// Ends every call of this rank that waits for its turn.
  void fail_queued(const Error& why) noexcept;
  /// Ends the worker. The destructor of a derived class calls it before it destroys members that
  /// run() and post_one() use.
  void stop() noexcept;
  int rank() const noexcept { return rank_; }  ///< In this group, which may be a part of another.
  /// The group and this rank as errors name them.
  const std::string& group() const noexcept { return group_; }
  int shown_rank() const noexcept { return shown_rank_; }  ///< See group().
  /// For backends in the tree: the queue, and states from a pool.
  Calls& calls() const noexcept { return *calls_; }

 private:
  class [[gnu::visibility("hidden")]] Task;
  void run_in_turn(std::span<const Op> ops, const Call& call);
  void run_now(std::span<const Op> ops, const Call& call);  // In its turn.
  /// Aborts the group because `posted` cannot be withdrawn, and waits for those messages to end.
  void abandon(Posts& posted, const Error& why) noexcept;
  Work submit(std::span<const Op> ops, const Call& call, const std::shared_ptr<WorkState>& posted);

  std::string group_;
  int rank_;
  int shown_rank_;
  std::unique_ptr<Calls> calls_;
};

}  // namespace tutti
