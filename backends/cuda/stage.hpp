#pragma once

#include <memory>

#include <tutti/backend/backend.hpp>

#include "pinned_pool.hpp"

namespace tutti::backend::cuda {

/// The error text of a call whose stream was still busy with earlier work at the deadline.
inline constexpr const char* late_text =
    "the deadline passed before the work on the call's stream had ended, so that its arrays could "
    "not be copied to the host";

/// The resources with which one rank of a group stages its arrays. A value.
struct Staging {
  std::shared_ptr<Gpu> gpu;
  std::shared_ptr<PinnedPool> pool;
  /// Used for copies only, so that no call waits for another call's stream.
  std::shared_ptr<CudaStream> copies;
  int rank = 0;
};

/// The arrays of one operation in pinned memory: inputs are copied there, and results are copied
/// back. One thread at a time.
class Stage {
 public:
  /// Queues the copies of the inputs of `op`. Earlier work on the inputs must have ended. @throws
  /// Error.
  Stage(const Staging& staging, const Op& op);

  /// True when the last queued copies have run. @throws Error.
  bool ready();
  /// Returns `op` with the arrays in pinned memory, once ready(). `op`: the constructor's
  /// operation; the result refers to the rows of `op`.
  Op on_host(const Op& op) const noexcept;
  /// Queues the copies of the results to the device; ready() is true when they have run. @throws
  /// Error.
  void bring_back(const Op& op);

 private:
  void copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind);
  /// Runs `copies`, which queues copies, and records an event after them.
  template <typename Copies>
  void queue(const Copies& copies);

  Staging staging_;
  bool writes_;          ///< Whether this rank's `out` is a result.
  bool copies_ = false;  ///< Whether the running queue() has queued a copy.
  PinnedPool::Block block_;
  std::byte* in_ = nullptr;
  std::byte* out_ = nullptr;
};

}  // namespace tutti::backend::cuda
