#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include <tutti/backend/backend.hpp>

#include "cuda/pinned_pool.hpp"
#include "op_context.hpp"
#include "work.hpp"

namespace tutti::backend::nccl {

/// One all_gather_bounded, in which each rank knows only its own row count. One ncclGroup gathers
/// the counts and a slot of the maximum length from each rank. When the counts have reached the
/// host, spread() queues copies out of the slots on a separate stream, so no collective waits for
/// the host.
///
/// Call order: before(), inside() within an ncclGroup, after(), and spread() when counted().
class Bounded {
 public:
  /// `counts` has room for counts_bytes().
  Bounded(const OpContext& context, const Op& op, cuda::PinnedPool::Block counts);
  static std::size_t counts_bytes(int size) noexcept {
    return (static_cast<std::size_t>(size) + 1) * sizeof(std::int64_t);
  }

  void before();
  void inside(ncclComm_t comm) const;
  void after();
  /// True when the counts of all ranks have reached the host.
  bool counted() const { return counts_.busy()->done(); }
  /// Queues the copies of the rows from the slots to `out` on `stream`. @throws Error mismatch when
  /// a rank has more rows than its slot.
  void spread(cudaStream_t stream);

  /// Returns the memory of the counts for reuse. Call it after the copies have been queued.
  cuda::PinnedPool::Block take_counts() && noexcept { return std::move(counts_); }

 private:
  std::int64_t* own_count() const noexcept {
    return reinterpret_cast<std::int64_t*>(counts_.data());
  }
  std::span<std::int64_t> all_counts() const noexcept {
    return {own_count() + 1, static_cast<std::size_t>(context_.size)};
  }
  std::byte* slots() const noexcept;

  OpContext context_;
  Op op_;
  std::int64_t most_;
  std::size_t row_bytes_;
  std::size_t slot_;
  cuda::PinnedPool::Block counts_;  // This rank's count, then the counts of all ranks.
  Scratch scratch_;                 // The counts of all ranks, then their slots.
};

/// The calls of a group with an all_gather_bounded, until the host has read their row counts and
/// queued their copies. Called from any thread.
class Counting {
 public:
  Counting(std::shared_ptr<Gpu> gpu, int size);
  /// Allocates memory for one call in advance: a later allocation may wait for the device, where
  /// collectives wait for their peers.
  void reserve();

  /// Returns pinned memory for the counts of one operation: that of an earlier call, if it is free.
  cuda::PinnedPool::Block room();
  /// Adds the call of `state`. spread() gives the state its event, behind the copies of `ops`.
  void add(std::shared_ptr<EventState> state, std::vector<Bounded> ops);
  /// Queues the copies of the calls whose counts have arrived, in the order of add(). Returns true
  /// when no call is left. @throws Error as Bounded::spread(), with the location of the call, or an
  /// error of CUDA.
  bool spread(const std::string& group, int rank);
  /// Drops the remaining calls. Call it when nothing uses their memory.
  void forget() noexcept;
  cudaStream_t stream() const noexcept { return copies_.get(); }

 private:
  struct Waiting {
    std::shared_ptr<EventState> state;
    std::vector<Bounded> ops;
  };
  std::shared_ptr<Gpu> gpu_;
  std::shared_ptr<cuda::PinnedPool> pool_;
  int size_;
  CudaStream copies_;  // Each copy is ordered after its call's stream. No collective waits for it.
  std::mutex mutex_;
  std::deque<Waiting> waiting_;
  std::vector<cuda::PinnedPool::Block> idle_;
};

}  // namespace tutti::backend::nccl
