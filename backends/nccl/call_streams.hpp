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

/// Chooses the stream of a call: the group's own, the caller's, or one for captured calls. Orders
/// the first two after the group's previous call.
///
/// For one thread at a time, under Launcher's mutex. EventState's lock is taken under that mutex.
class CallStreams {
 public:
  explicit CallStreams(std::shared_ptr<Gpu> gpu)
      : gpu_(std::move(gpu)), own_(gpu_, gpu_->settings().priority) {}
  CallStreams(const CallStreams&) = delete;
  CallStreams& operator=(const CallStreams&) = delete;

  cudaStream_t own() const noexcept { return own_.get(); }
  /// The stream of a call that is not captured, ordered after all earlier calls.
  cudaStream_t choose(std::span<const Op> ops, const Call& call, int size);
  /// The stream for calls that are captured on `from`. No other calls run on it, because they would
  /// be captured too.
  cudaStream_t for_capture(cudaStream_t from);
  /// Records that the last call runs on the caller's stream.
  void ran_elsewhere(std::shared_ptr<EventState> last) noexcept { elsewhere_ = std::move(last); }
  /// Orders the group's own stream after the last call.
  void catch_up();

 private:
  std::shared_ptr<Gpu> gpu_;
  CudaStream own_;
  std::shared_ptr<EventState> elsewhere_;  // The last call; null if it is on own_.
  /// By the argument of for_capture(), and by the thread if that is cudaStreamPerThread.
  std::map<std::pair<cudaStream_t, std::thread::id>, std::unique_ptr<CudaStream>> of_captures_;
};

}  // namespace tutti::backend::nccl
