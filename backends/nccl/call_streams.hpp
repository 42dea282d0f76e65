#pragma once

#include <map>
#include <memory>
#include <span>
#include <thread>
#include <utility>

#include <tutti/backend/backend.hpp>

#include "gpu.hpp"
#include "work.hpp"

namespace tutti::backend::nccl {

/// The choice of the stream on which a call runs, behind the group's call before it: the group's
/// own, the caller's, or one for the calls of a capture.
///
/// One thread at a time: Launcher's mutex guards it. EventState's lock is taken under that.
class CallStreams {
 public:
  explicit CallStreams(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)), own_(gpu_) {}
  CallStreams(const CallStreams&) = delete;
  CallStreams& operator=(const CallStreams&) = delete;

  cudaStream_t own() const noexcept { return own_.get(); }
  /// The stream of a call that is not captured, behind all calls before it.
  cudaStream_t choose(std::span<const Op> ops, const Call& call, int size);
  /// The stream for calls that are captured on `from`. No other calls run on it: these would be
  /// captured, too, until the capture ends.
  cudaStream_t for_capture(cudaStream_t from);
  /// The last call runs on the caller's stream.
  void ran_elsewhere(std::shared_ptr<EventState> last) noexcept { elsewhere_ = std::move(last); }
  /// Puts the group's own stream behind the last call.
  void catch_up();

 private:
  std::shared_ptr<Gpu> gpu_;
  CudaStream own_;
  std::shared_ptr<EventState> elsewhere_;  // The last call, unless it is on the own stream.
  /// By where a capture begins.
  std::map<std::pair<cudaStream_t, std::thread::id>, std::unique_ptr<CudaStream>> of_captures_;
};

}  // namespace tutti::backend::nccl
