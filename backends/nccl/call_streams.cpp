#include "call_streams.hpp"

#include <algorithm>

#include "ops.hpp"

namespace tutti::backend::nccl {
namespace {

/// True for a stream that the program has made. A default stream synchronises with other streams or
/// differs between threads, and NCCL queues its work on a separate thread.
bool is_made(cudaStream_t stream) noexcept {
  return stream != nullptr && stream != cudaStreamLegacy && stream != cudaStreamPerThread;
}

}  // namespace

cudaStream_t CallStreams::choose(std::span<const Op> ops, const Call& call, int size) {
  const auto theirs = to_cuda(call.stream);
  // The caller waits until the call has been queued, so the caller's stream exists. A call with
  // scratch memory runs elsewhere: after a hanging abort, its memory is released when the caller
  // has returned.
  const bool direct =
      call.blocking && is_made(theirs) && std::ranges::none_of(ops, [&](const Op& op) {
        return needs_scratch(op, size, call.order_fixed);
      });
  if (!direct) {
    catch_up();
    return own_.get();
  }
  // Needed even if the last call's stream had this handle: the handle may have been reused.
  if (elsewhere_ != nullptr) {
    elsewhere_->block(theirs);
  } else {
    const DeviceScope scope(gpu_->cuda(), gpu_->index());
    auto last = gpu_->event();
    last.record(own_.get());
    last.block(theirs);
  }
  return theirs;
}

cudaStream_t CallStreams::for_capture(cudaStream_t from) {
  // This handle means a different stream on each thread.
  const auto thread = from == cudaStreamPerThread ? std::this_thread::get_id() : std::thread::id();
  auto& found = of_captures_[{from, thread}];
  if (found == nullptr) found = std::make_unique<CudaStream>(gpu_);
  return found->get();
}

void CallStreams::catch_up() {
  if (elsewhere_ != nullptr) elsewhere_->block(own_.get());
  elsewhere_.reset();
}

}  // namespace tutti::backend::nccl
