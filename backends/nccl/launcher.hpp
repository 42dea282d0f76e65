#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <tutti/backend/backend_table.hpp>
#include <tutti/tensor.hpp>

#include "bounded.hpp"
#include "call_streams.hpp"
#include "communicator.hpp"
#include "failure.hpp"
#include "launch.hpp"

namespace tutti::backend::nccl {

/// Passes the collectives of a group to NCCL, one call after the other, each on its stream.
///
/// launch() from one thread at a time, in the order of the calls; the other functions from any
/// thread. `mutex_` guards launch_ and streams_. Under it only the locks of Communicator,
/// Counting and EventState are taken.
class Launcher {
 public:
  /// The arguments outlive it.
  Launcher(std::shared_ptr<Gpu> gpu, const BackendInit& init, Memory& memory, Failure& failure,
           std::shared_ptr<Communicator> communicator);
  /// Waits up to 1 s until the scratch memory has been released, unless the group is broken.
  ~Launcher();
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  /// Prepares the device for calls. Once, before the first call. @throws Error.
  void prepare();
  bool supports(Operation operation, DType dtype, ReduceOp::Kind reduce) const noexcept;
  /// True when the call is captured into a graph. @throws Error unsupported for operations that a
  /// graph or this build does not support, or as cuda::is_capturing().
  bool check_call(std::span<const Op> ops, const Call& call) const;

  /// Passes the call to NCCL, which may queue it later. @throws Error.
  void launch(std::span<const Op> ops, const std::shared_ptr<EventState>& state);
  /// Advances the last call without blocking. True when it has been queued.
  bool advance();
  /// The same, unless another thread is doing it. Then the result is true.
  bool try_advance();
  /// Blocks until the last call has been queued. @throws Error.
  void await(Deadline limit);
  /// Queues the copies of each all_gather_bounded whose counts have arrived. True when no
  /// all_gather_bounded is left.
  bool spread_rows() { return counting_.spread(init_.name, init_.rank); }
  /// Blocks until spread_rows() returns true or the group has broken. At a call's deadline the
  /// Watcher breaks the group.
  void await_rows() noexcept;

  /// Records `end` behind all calls so far.
  void mark_end(Gpu::Event& end);
  /// The streams on which calls may still run, after an abort.
  std::vector<cudaStream_t> streams();
  /// Ends the call in progress after an abort. Its memory is released if the device is `idle`.
  void give_up(bool idle) noexcept;

  Stream stream() const noexcept { return {streams_.own()}; }

 private:
  void load_kernels();

  std::shared_ptr<Gpu> gpu_;
  const BackendInit& init_;
  Failure& failure_;
  std::shared_ptr<Communicator> communicator_;

  std::mutex mutex_;
  CallStreams streams_;
  Tensor token_{};          // One element in device memory, for barriers.
  std::string no_kernels_;  // Why kernels cannot be used; empty if they can.
  OpContext context_;       // With the group's own stream; constant after prepare().
  Counting counting_;
  std::optional<Launch> launch_;
};

}  // namespace tutti::backend::nccl
