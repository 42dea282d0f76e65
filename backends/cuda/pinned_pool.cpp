#include "pinned_pool.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "values/fail.hpp"

namespace tutti::backend::cuda {
namespace {

constexpr std::size_t page = 4096;

/// True when no copy uses the block. False after a device error, because the state is unknown.
bool is_free(const std::optional<Gpu::Event>& busy) noexcept {
  try {
    return !busy || busy->done();
  } catch (...) {
    return false;
  }
}

}  // namespace

PinnedPool::Block::Block(std::shared_ptr<PinnedPool> pool, std::byte* data,
                         std::size_t bytes) noexcept
    : pool_(std::move(pool)), data_(data), bytes_(bytes) {}

PinnedPool::Block::Block(Block&& other) noexcept
    : pool_(std::move(other.pool_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(other.bytes_),
      busy_(std::move(other.busy_)) {}

PinnedPool::Block::~Block() {
  if (data_ != nullptr) pool_->give({data_, bytes_, std::move(busy_)});
}

void PinnedPool::Block::busy_on(Gpu& gpu, cudaStream_t stream) {
  try {
    auto end = gpu.event();
    end.record(stream);
    busy_.emplace(std::move(end));
  } catch (...) {
    lose();
    throw;
  }
}

PinnedPool::PinnedPool(std::shared_ptr<Gpu> gpu, std::size_t bound)
    : gpu_(std::move(gpu)), bound_(bound) {}

PinnedPool::~PinnedPool() {
  trim(0);  // Blocks in use by a copy are leaked: the copy could write to reused memory.
}

// The caller may have any current device, and other threads may capture into a graph.

cudaError_t PinnedPool::get_from_cuda(std::size_t bytes, void** data) {
  const DeviceScope scope(gpu_->cuda(), gpu_->index());
  const RelaxedCapture relaxed(gpu_->cuda());
  return gpu_->cuda().host_alloc(data, bytes, cudaHostAllocDefault);
}

void PinnedPool::give_to_cuda(void* data) noexcept {
  const DeviceScope scope(gpu_->cuda(), gpu_->index(), std::nothrow);
  const RelaxedCapture relaxed(gpu_->cuda());
  (void)gpu_->cuda().free_host(data);
}

PinnedPool::Block PinnedPool::take(std::size_t bytes) {
  if (bytes == 0) return {};
  if (const auto found = take_idle(bytes)) return {shared_from_this(), found->data, found->bytes};
  if (bytes > std::numeric_limits<std::size_t>::max() - page)
    internal::failf(Errc::resource_exhausted, "cannot allocate {} bytes of pinned host memory",
                    bytes);
  const std::size_t room = (bytes + page - 1) / page * page;
  const auto& cuda = gpu_->cuda();
  void* data = nullptr;
  auto code = get_from_cuda(room, &data);
  if (code == cudaErrorMemoryAllocation) {
    (void)cuda.get_last_error();
    trim(0);
    code = get_from_cuda(room, &data);
  }
  if (code != cudaSuccess) {
    const Error error = cuda_error(cuda, code, "cudaHostAlloc");
    throw Error(error.code(), fmt::format("{} bytes of pinned host memory to stage arrays: {}",
                                          room, error.message()));
  }
  return {shared_from_this(), static_cast<std::byte*>(data), room};
}

std::optional<PinnedPool::Idle> PinnedPool::take_idle(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  auto best = idle_.end();
  for (auto it = idle_.begin(); it != idle_.end(); ++it) {
    const bool fits = it->bytes >= bytes && it->bytes / 2 <= std::max(bytes, page);
    if (fits && (best == idle_.end() || it->bytes < best->bytes) && is_free(it->busy)) best = it;
  }
  if (best == idle_.end()) return std::nullopt;
  std::optional<Idle> found(std::move(*best));
  idle_bytes_ -= found->bytes;
  idle_.erase(best);
  return found;
}

void PinnedPool::trim(std::size_t keep) noexcept {
  std::vector<std::byte*> gone;
  try {
    const std::lock_guard lock(mutex_);
    gone.reserve(idle_.size());
    std::erase_if(idle_, [&](const Idle& block) {
      if (idle_bytes_ <= keep || !is_free(block.busy)) return false;
      idle_bytes_ -= block.bytes;
      gone.push_back(block.data);
      return true;
    });
    for (auto* data : gone) give_to_cuda(data);
  } catch (...) {  // `gone` could not grow; a later call frees the memory.
  }
}

void PinnedPool::give(Idle block) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(block));
    idle_bytes_ += idle_.back().bytes;
  } catch (...) {  // The pool could not grow.
    if (is_free(block.busy)) give_to_cuda(block.data);
    return;
  }
  trim(bound_);
}

void* PinnedPool::allocate(std::size_t bytes, Stream stream) {
  if (is_capturing(*gpu_, to_cuda(stream)))
    tutti::fail(Errc::unsupported,
                "the call's stream is being captured into a CUDA graph, but the host has to wait "
                "for the call's copies; call it outside of the capture");
  if (bytes == 0) return nullptr;  // The caller asks only whether an allocation is permitted.
  auto block = take(bytes);
  void* data = block.data();
  const std::lock_guard lock(mutex_);
  allocated_.emplace(data, std::move(block));
  return data;
}

void PinnedPool::release(void* data, std::size_t, Stream stream) noexcept {
  std::unique_lock lock(mutex_);
  auto block = allocated_.extract(data);
  lock.unlock();
  if (block.empty()) return;
  try {
    const DeviceScope scope(gpu_->cuda(), gpu_->index());
    block.mapped().busy_on(*gpu_, to_cuda(stream));
  } catch (...) {  // A copy may still use it.
    block.mapped().lose();
  }
}

void PinnedPool::copy(void* to, const void* from, std::size_t bytes, Stream) {
  host_memory().copy(to, from, bytes, {});
}

std::shared_ptr<PinnedPool> pinned_pool(const CudaApi& cuda, int device) {
  static std::mutex guard;
  static auto& all = *new std::map<std::pair<const CudaApi*, int>, std::weak_ptr<PinnedPool>>;
  const std::lock_guard lock(guard);
  auto& known = all[{&cuda, device}];
  auto pool = known.lock();
  if (pool == nullptr)
    known = pool = std::make_shared<PinnedPool>(std::make_shared<Gpu>(cuda, device));
  return pool;
}

}  // namespace tutti::backend::cuda
