#include "memory.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "cuda/memory.hpp"

namespace tutti::backend::nccl {

NcclMemory::NcclMemory(const Apis& apis, int index) : apis_(apis), index_(index) {}

Device NcclMemory::device() const noexcept {
  return {DeviceType::cuda, index_};
}

void* NcclMemory::allocate(std::size_t bytes, Stream) {
  const DeviceScope scope(*apis_.cuda, index_);
  void* data = nullptr;
  const auto room = std::max<std::size_t>(bytes, 1);
  const auto code = apis_.nccl->mem_alloc(&data, room);
  if (code != ncclSuccess) {
    (void)apis_.cuda->get_last_error();  // Resets the error, so that the program does not see it.
    throw Error(
        Errc::resource_exhausted,
        fmt::format("ncclMemAlloc of {} bytes on cuda:{}: {}; NCCL_DEBUG=WARN tells more. In a "
                    "container its handles may need /dev/nvidia-caps-imex-channels, or "
                    "NCCL_MNNVL_ENABLE=0",
                    bytes, index_, apis_.nccl->get_error_string(code)));
  }
  const std::lock_guard lock(mutex_);
  blocks_[static_cast<const std::byte*>(data)] = room;
  return data;
}

void NcclMemory::release(void* data, std::size_t, Stream stream) noexcept {
  if (data == nullptr) return;
  try {
    const DeviceScope scope(*apis_.cuda, index_);
    // Waiting would invalidate the capture, and its graph may use the block, so the block is
    // leaked.
    if (cuda::is_capturing(*apis_.cuda, index_, to_cuda(stream))) return;
    cuda::check(*apis_.cuda, apis_.cuda->stream_synchronize(to_cuda(stream)),
                "cudaStreamSynchronize");
    {
      const std::lock_guard lock(mutex_);
      blocks_.erase(static_cast<const std::byte*>(data));
    }
    check(*apis_.nccl, apis_.nccl->mem_free(data), "ncclMemFree");
  } catch (...) {  // The context and its memory are lost, or the stream must not be queried.
  }
}

void NcclMemory::copy(void* to, const void* from, std::size_t bytes, Stream stream) {
  cuda::cuda_memory(*apis_.cuda, index_).copy(to, from, bytes, stream);
}

const std::byte* NcclMemory::block_for_window(const void* data, std::size_t bytes) const noexcept {
  constexpr std::uintptr_t alignment = 4096;  // NCCL_WIN_REQUIRED_ALIGNMENT
  if (reinterpret_cast<std::uintptr_t>(data) % alignment != 0) return nullptr;
  const auto* begin = static_cast<const std::byte*>(data);
  const std::lock_guard lock(mutex_);
  const auto next = blocks_.upper_bound(begin);
  if (next == blocks_.begin()) return nullptr;
  const auto& [base, room] = *std::prev(next);
  const auto offset = static_cast<std::size_t>(begin - base);
  return offset < room && bytes <= room - offset ? base : nullptr;
}

NcclMemory& nccl_memory(const Apis& apis, int device) {
  return cuda::process_wide<NcclMemory>(std::pair(apis.nccl, device), apis, device);
}

}  // namespace tutti::backend::nccl
