#pragma once

#include <memory>

#include <tutti/backend/backend.hpp>

#include "pinned_pool.hpp"

namespace tutti::backend::cuda {

/// The error text of a call whose stream does not come to it in time.
inline constexpr const char* late_text =
    "the deadline passed before the work on the call's stream had ended, so that its arrays could "
    "not be copied to the host";

/// The resources with which one rank of a group stages its arrays. A value.
struct Staging {
  std::shared_ptr<Gpu> gpu;
  std::shared_ptr<PinnedPool> pool;
  /// Waits for nothing but copies, so that no call is behind another one's stream.
  std::shared_ptr<CudaStream> copies;
  int rank = 0;
};

/// The arrays of one operation in pinned memory: what it reads is copied there, what it wrote is
/// copied back. One thread at a time.
class Stage {
 public:
  /// Queues the copies of what `op` reads; what writes it has ended. @throws Error.
  Stage(const Staging& staging, const Op& op);

  /// True when what was queued last has run. @throws Error.
  bool ready();
  /// The operation on the arrays in pinned memory, from ready() on. With the rows of `op`, which is
  /// the operation that this was made for.
  Op on_host(const Op& op) const noexcept;
  /// Queues the copy of what the operation wrote; ready() says when it has run. @throws Error.
  void bring_back(const Op& op);

 private:
  void copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind);
  /// `copies` queues some; marks their end.
  template <typename Copies>
  void queue(const Copies& copies);

  Staging staging_;
  bool writes_;          ///< Whether this rank's `out` is a result.
  bool copies_ = false;  ///< Whether something has been queued.
  PinnedPool::Block block_;
  std::byte* in_ = nullptr;
  std::byte* out_ = nullptr;
};

}  // namespace tutti::backend::cuda
