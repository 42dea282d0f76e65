#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>

#include "channel.hpp"

namespace tutti::backend::nccl {

/// The messages of a rank to itself: copies, once both sides have been posted. From any thread.
class SelfBox {
 public:
  explicit SelfBox(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)), stream_(gpu_) {}
  void post(Message message);
  cudaStream_t stream() const noexcept { return stream_.get(); }

 private:
  void copy(Message& send, Message& recv);

  std::shared_ptr<Gpu> gpu_;
  std::mutex mutex_;
  CudaStream stream_;
  std::map<int, std::deque<Message>> waiting_;  // By tag; of one kind at a time.
};

}  // namespace tutti::backend::nccl
