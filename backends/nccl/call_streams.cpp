#include "call_streams.hpp"

#include <algorithm>

#include "ops.hpp"

namespace tutti::backend::nccl {
namespace {

/// True for a stream that the program has made: a collective may run on it. False for default
/// streams. The legacy one synchronises with other streams. The handle of the per-thread one means
/// another stream on NCCL's thread, which queues the collective.
bool is_made(cudaStream_t stream) noexcept {
  return stream != nullptr && stream != cudaStreamLegacy && stream != cudaStreamPerThread;
}

}  // namespace

cudaStream_t CallStreams::choose(std::span<const Op> ops, const Call& call, int size) {
  const auto theirs = to_cuda(call.stream);
  // A blocking call may run on the caller's stream: the caller waits until the call has been
  // queued, so the stream exists until then. A call with scratch memory may not: after an abort
  // that hangs, its memory is released on the call's stream when the caller has already returned.
  const bool direct =
      call.blocking && is_made(theirs) && std::ranges::none_of(ops, [&](const Op& op) {
        return needs_scratch(op, size, call.order_fixed);
      });
  if (!direct) {
    catch_up();
    return own_.get();
  }
  // Orders `theirs` after the last call even if that call ran on the same handle: the program may
  // have destroyed that stream, and made another one with its handle.
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
  // cudaStreamPerThread means a different stream on each thread.
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
