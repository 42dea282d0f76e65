#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>

#include <tutti/backend/backend.hpp>

#include "group/call_queue.hpp"
#include "group/host_state.hpp"

namespace tutti::internal {

/// The base of the backends of host memory. Blocking calls run inline on their caller's thread;
/// async calls run on a worker that starts with the first of them. Both run in the order of their
/// numbers. Point-to-point is posted at once.
///
/// The destructor of a derived class must call stop() first: the worker uses the members that it
/// destroys.
class HostBackend : public Backend {
 public:
  HostBackend(std::string group, int rank);
  ~HostBackend() override;

  /// True for every reduction of the kernels and for custom reductions.
  bool supports(Operation operation, DType dtype, ReduceOp::Kind kind) const noexcept override;
  Work launch(std::span<const Op> ops, const Call& call) override;
  void refuse(std::span<const Op> ops, const Call& call, const Error& why) noexcept final;

 protected:
  /// Runs the collectives among `ops`, in turn; skips send and recv. Blocks to call.limit() at
  /// the most and throws Error.
  virtual void run(std::span<const Op> ops, const Call& call) = 0;
  /// Posts the sends and receives among `ops` with post_one(); skips collectives. The returned Work
  /// is done when all of them are.
  virtual std::shared_ptr<WorkState> post(std::span<const Op> ops, const Call& call);
  /// Posts a send or receive, which ends by `limit` at the latest. Never blocks for a peer.
  virtual std::shared_ptr<WorkState> post_one(const Op& op, const Call& call, Deadline limit);
  /// Tells the peers. Never blocks.
  virtual void publish(std::span<const Op> ops, const Call& call, const Error& why) noexcept = 0;

  /// Ends every call of this rank that waits for its turn.
  void fail_queued(const Error& why) noexcept { queue_->fail(why); }
  void stop() noexcept { queue_->stop(); }
  /// For callbacks that may run while this object is destroyed.
  const std::shared_ptr<CallQueue>& queue() const noexcept { return queue_; }

  /// A state from the pool.
  template <typename T, typename... Args>
  std::shared_ptr<T> make_state(Args&&... args) {
    return std::allocate_shared<T>(PoolAllocator<T>(pool_), queue_, std::forward<Args>(args)...);
  }
  Pool& pool() noexcept { return *pool_; }
  const std::string& group() const noexcept { return group_; }
  int rank() const noexcept { return rank_; }

 private:
  class Task;
  void run_in_turn(std::span<const Op> ops, const Call& call);
  void run_now(std::span<const Op> ops, const Call& call);  // In its turn.
  Work submit(std::span<const Op> ops, const Call& call, const std::shared_ptr<WorkState>& posted);

  std::string group_;
  int rank_;
  std::shared_ptr<Pool> pool_;
  std::shared_ptr<CallQueue> queue_;
};

}  // namespace tutti::internal
