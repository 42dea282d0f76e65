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

/// all_gather_bounded: rows whose number only their own rank knows. The numbers and slots of the
/// permitted length travel in one group. Where the rows end is known when the numbers have come to
/// the host; the copies out of the slots run on a stream of their own then, so no call of the group
/// waits for the host.
///
/// In this order: before(), inside() of a group, after(); and when all that has run, spread().
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
  /// True when the numbers of all ranks have come.
  bool counted() const { return counts_.busy()->done(); }
  /// Queues the copies on `stream`. @throws Error mismatch when a rank has more than may come.
  void spread(cudaStream_t stream);

  /// For the next one, when the copies have been queued.
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
  cuda::PinnedPool::Block counts_;  // This rank's, then those of all.
  Scratch scratch_;                 // The numbers of all ranks, then their slots.
};

/// The calls of a group with rows that the host has to count. Called from any thread.
class Counting {
 public:
  Counting(std::shared_ptr<Gpu> gpu, int size);
  /// Gets memory for one call: CUDA may make a later one wait for the device, where collectives
  /// wait for their peers.
  void reserve();

  /// Memory for the counts of one operation: that of an earlier one if possible.
  cuda::PinnedPool::Block room();
  /// The state gets its event when the numbers of `ops` have come.
  void add(std::shared_ptr<EventState> state, std::vector<Bounded> ops);
  /// Queues the copies of the calls whose numbers have come. True when no call is left.
  /// @throws Error with the place of the call.
  bool spread(const std::string& group, int rank);
  /// Of calls that will not go on, when nothing uses their memory any more.
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
  CudaStream copies_;  // Behind the group's stream; no collective waits for it.
  std::mutex mutex_;
  std::deque<Waiting> waiting_;
  std::vector<cuda::PinnedPool::Block> idle_;
};

}  // namespace tutti::backend::nccl
