#pragma once

#include <array>
#include <cstddef>
#include <exception>
#include <memory>
#include <memory_resource>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <tutti/backend/backend.hpp>

#include "group/call_queue.hpp"
#include "group/host_state.hpp"

namespace tutti::internal {

/// The sends and receives of a launch, once they are posted. The first ones take no allocation.
class Posted {
 public:
  explicit Posted(std::pmr::memory_resource& pool)
      : memory_(room_.data(), room_.size(), &pool), states_(&memory_) {}
  Posted(const Posted&) = delete;
  Posted& operator=(const Posted&) = delete;

  void reserve(std::size_t count) { states_.reserve(count); }
  void add(std::shared_ptr<WorkState> state) { states_.push_back(std::move(state)); }
  bool empty() const noexcept { return states_.empty(); }
  /// Blocks until all of them are done: post() bounds that by the call's deadline. Returns the
  /// first error in their order.
  std::exception_ptr wait() noexcept;
  /// One state for all of them; null for none.
  std::shared_ptr<WorkState> all() const;

 private:
  std::array<std::byte, 4 * sizeof(std::shared_ptr<WorkState>)> room_;
  std::pmr::monotonic_buffer_resource memory_;
  std::pmr::vector<std::shared_ptr<WorkState>> states_;
};

/// What the backends of host memory share: blocking calls run inline on their caller's thread,
/// async ones on a worker that starts with the first of them, both in the order of their numbers;
/// point-to-point is posted at once.
///
/// A destructor of a derived class calls stop() first: the worker uses what it destroys.
class HostBackend : public Backend {
 public:
  HostBackend(std::string group, int rank);
  ~HostBackend() override;

  /// What the kernels can reduce, and custom reductions.
  bool supports(Operation operation, DType dtype, ReduceOp::Kind kind) const noexcept override;
  Work launch(std::span<const Op> ops, const Call& call) override;
  void refuse(std::span<const Op> ops, const Call& call, const Error& why) noexcept final;

 protected:
  /// Runs the collectives among `ops`, in turn; skips send and recv. Blocks to call.limit() at
  /// the most and throws Error.
  virtual void run(std::span<const Op> ops, const Call& call) = 0;
  /// Posts the sends and receives among `ops`, with post_one(), and adds them to `posted`; skips
  /// collectives. When it throws, the peers are told, or the group is aborted if `posted` has some.
  virtual void post(std::span<const Op> ops, const Call& call, Posted& posted);
  /// Posts a send or receive, or throws. Never blocks for a peer. It ends by `limit` at the latest.
  virtual std::shared_ptr<WorkState> post_one(const Op& op, const Call& call, Deadline limit);
  /// Tells the peers. Never blocks.
  virtual void publish(std::span<const Op> ops, const Call& call, const Error& why) noexcept = 0;

  /// Ends every call of this rank that waits for its turn.
  void fail_queued(const Error& why) noexcept { queue_->fail(why); }
  void stop() noexcept { queue_->stop(); }
  /// For a callback that may run while this object ends.
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
  /// Aborts the group because `posted` cannot be taken back, and waits for its end.
  void abandon(Posted& posted, const Error& why) noexcept;
  Work submit(std::span<const Op> ops, const Call& call, const std::shared_ptr<WorkState>& posted);

  std::string group_;
  int rank_;
  std::shared_ptr<Pool> pool_;
  std::shared_ptr<CallQueue> queue_;
};

}  // namespace tutti::internal
