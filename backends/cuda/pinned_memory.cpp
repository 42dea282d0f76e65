#include "pinned_memory.hpp"

#include <utility>

#include "values/fail.hpp"

namespace tutti::backend::cuda {

PinnedMemory::PinnedMemory(const std::shared_ptr<Gpu>& gpu)
    : gpu_(gpu), pool_(pinned_pool(gpu->cuda(), gpu->index())) {}

void* PinnedMemory::allocate(std::size_t bytes, Stream stream) {
  if (is_capturing(*gpu_, to_cuda(stream)))
    tutti::fail(Errc::unsupported,
                "the call's stream is being captured into a CUDA graph, but the host has to wait "
                "for what it copies; call it outside of the capture");
  if (bytes == 0) return nullptr;  // It was a question.
  auto block = pool_->take(bytes);
  void* data = block.data();
  const std::lock_guard lock(mutex_);
  blocks_.emplace(data, std::move(block));
  return data;
}

void PinnedMemory::release(void* data, std::size_t, Stream stream) noexcept {
  std::unique_lock lock(mutex_);
  auto block = blocks_.extract(data);
  lock.unlock();
  if (block.empty()) return;
  try {
    const DeviceScope scope(gpu_->cuda(), gpu_->index());
    auto end = gpu_->event();
    end.record(to_cuda(stream));
    block.mapped().busy_until(std::move(end));
  } catch (...) {  // A copy may still use it.
    block.mapped().lose();
  }
}

void PinnedMemory::copy(void* to, const void* from, std::size_t bytes, Stream) {
  host_memory().copy(to, from, bytes, {});
}

}  // namespace tutti::backend::cuda
