#include "call_streams.hpp"

#include <algorithm>

#include "ops.hpp"

namespace tutti::backend::nccl {
namespace {

/// True for a stream that the program has made. The default streams wait for others, or are another
/// one on each thread, and NCCL queues its work on a thread of its own.
bool is_made(cudaStream_t stream) noexcept {
  return stream != nullptr && stream != cudaStreamLegacy && stream != cudaStreamPerThread;
}

}  // namespace

cudaStream_t CallStreams::choose(std::span<const Op> ops, const Call& call, int size) {
  const auto theirs = to_cuda(call.stream);
  // The caller waits until the call has been queued, so the stream is there. Scratch memory would
  // have to be released on it also when NCCL has not come back from an abort, and the caller has
  // gone.
  const bool direct =
      call.blocking && is_made(theirs) && std::ranges::none_of(ops, [&](const Op& op) {
        return needs_scratch(op, size, call.order_fixed);
      });
  if (!direct) {
    catch_up();
    return own_.get();
  }
  // Also where the last call had a stream of this handle, which may have been another one.
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
  // This handle is another stream on each thread.
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
