// The CUDA runtime of the double: memory and copies.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include <fmt/format.h>

#include "backends/nccl/double/capture.hpp"
#include "backends/nccl/double/cuda_call.hpp"
#include "backends/nccl/double/double.hpp"

namespace tutti::test::nccl_double {

namespace {

cudaError_t malloc_async(void** data, std::size_t bytes, cudaStream_t handle) {
  const CudaCall call("cudaMallocAsync");
  *data = nullptr;
  Stream* stream = call.stream(handle);
  if (stream == nullptr) return call.give(cudaErrorInvalidResourceHandle);
  if (const auto error = call.broken(stream->device)) return call.give(error);
  if (bytes == 0) return cudaSuccess;
  *data = call.here.memory.allocate(stream->device, bytes);
  if (*data == nullptr) return call.give(cudaErrorMemoryAllocation);
  // Uses of the block have to be ordered after this in the stream.
  const Touch touch{*data, bytes, true};
  if (stream->capture != nullptr) {  // Every launch allocates the block at this address.
    Block* block = call.here.memory.find(*data);
    stream->capture->blocks.push_back(block->base);
    keep(*stream,
         {.task = {.run = [memory = &call.here.memory, at = *data,
                           bytes] { std::memset(memory->bytes(at), DeviceMemory::fresh, bytes); }},
          .touches = {touch},
          .what = "cudaMallocAsync",
          .before = [block] { block->freed = false; }});
    return cudaSuccess;
  }
  call.here.push(*stream, {}, {&touch, 1}, "cudaMallocAsync");
  return cudaSuccess;
}

/// A pool has no state: its blocks know only that they are of one.
cudaError_t mem_pool_create(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  const CudaCall call("cudaMemPoolCreate");
  if (properties->location.id != call.thread.device) return call.give(cudaErrorInvalidDevice);
  static int pools[device_count];
  *pool = reinterpret_cast<cudaMemPool_t>(&pools[properties->location.id]);
  return cudaSuccess;
}

cudaError_t mem_pool_set_attribute(cudaMemPool_t pool, cudaMemPoolAttr, void*) {
  const CudaCall call("cudaMemPoolSetAttribute");
  return call.give(pool == nullptr ? cudaErrorInvalidValue : cudaSuccess);
}

cudaError_t malloc_from_pool_async(void** data, std::size_t bytes, cudaMemPool_t pool,
                                   cudaStream_t handle) {
  {
    const CudaCall call("cudaMallocFromPoolAsync");
    if (pool == nullptr) return call.give(cudaErrorInvalidValue);
  }
  const auto result = malloc_async(data, bytes, handle);
  const Lock lock(machine().mutex);
  if (result == cudaSuccess && bytes != 0) machine().memory.find(*data)->of_pool = true;
  return result;
}

cudaError_t mem_pool_trim_to(cudaMemPool_t pool, std::size_t) {
  const CudaCall call("cudaMemPoolTrimTo");
  if (pool == nullptr) return call.give(cudaErrorInvalidValue);
  if (call.here.prohibited(call.name)) return call.give(cudaErrorStreamCaptureUnsupported);
  call.here.progress();
  Device& device = call.here.devices[Machine::index(call.thread.device)];
  device.kept_by_trim = 0;
  for (const auto& [base, block] : call.here.memory.blocks()) {
    if (!block.of_pool || block.device != call.thread.device) continue;
    const auto seen = [&](const Access& access) {
      return device.host.at(access.lane) >= access.epoch;
    };
    if (!block.freed || !std::ranges::all_of(block.accesses, seen)) ++device.kept_by_trim;
  }
  return cudaSuccess;
}

cudaError_t free_async(void* data, cudaStream_t handle) {
  const CudaCall call("cudaFreeAsync");
  Stream* stream = call.stream(handle);
  if (stream == nullptr) return call.give(cudaErrorInvalidResourceHandle);
  if (data == nullptr) return cudaSuccess;
  Block* block = call.here.memory.find(data);
  if (block == nullptr || block->base != reinterpret_cast<std::uintptr_t>(data) || block->freed) {
    call.here.violate(fmt::format("cudaFreeAsync of {}", block != nullptr && block->freed
                                                             ? "memory that is freed already"
                                                             : "what is not a block"));
    return call.give(cudaErrorInvalidValue);
  }
  if (block->of_nccl) call.here.violate("cudaFreeAsync of memory of ncclMemAlloc");
  check_not_registered(call.here, *block, "cudaFreeAsync");
  const Touch touch{data, block->bytes, true};
  if (stream->capture != nullptr) {
    if (std::ranges::find(stream->capture->blocks, block->base) == stream->capture->blocks.end())
      call.here.violate("cudaFreeAsync in a graph of memory that is not allocated in it");
    keep(*stream, {.task = {.run =
                                [memory = &call.here.memory, data, bytes = block->bytes] {
                                  std::memset(memory->bytes(data), DeviceMemory::freed, bytes);
                                }},
                   .touches = {touch},
                   .what = "cudaFreeAsync",
                   .after = [block] { block->freed = true; }});
    block->freed = true;
    return cudaSuccess;
  }
  call.here.push(*stream,
                 {.run =
                      [memory = &call.here.memory, base = block->base, data] {
                        Block& gone = memory->blocks().at(base);
                        std::memset(memory->bytes(data), DeviceMemory::freed, gone.bytes);
                        memory->retire(gone);
                      }},
                 {&touch, 1}, "cudaFreeAsync");
  block->freed = true;
  return call.give(call.broken(stream->device));
}

cudaError_t host_alloc(void** data, std::size_t bytes, unsigned int flags) {
  const CudaCall call("cudaHostAlloc");
  *data = nullptr;
  if (const auto error = call.broken(call.thread.device)) return call.give(error);
  constexpr unsigned int known =
      cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined;
  if ((flags & ~known) != 0) return call.give(cudaErrorInvalidValue);
  if (bytes == 0) return cudaSuccess;
  if (call.here.prohibited(call.name)) return call.give(cudaErrorStreamCaptureUnsupported);
  const std::size_t room = call.here.devices[Machine::index(call.thread.device)].faults.pinned_room;
  if (bytes > room || call.here.pinned.bytes() > room - bytes)
    return call.give(cudaErrorMemoryAllocation);
  *data = call.here.pinned.allocate(bytes);
  return cudaSuccess;
}

cudaError_t free_host(void* data) {
  const CudaCall call("cudaFreeHost");
  if (data == nullptr) return cudaSuccess;
  if (call.here.prohibited(call.name)) return call.give(cudaErrorStreamCaptureUnsupported);
  if (call.here.pinned.busy(data)) {
    call.here.violate("cudaFreeHost of memory that a queued copy uses");
    return cudaSuccess;
  }
  if (!call.here.pinned.release(data)) {
    call.here.violate("cudaFreeHost of what is not a block");
    return call.give(cudaErrorInvalidValue);
  }
  return call.give(call.broken(call.thread.device));
}

/// The memory that the host must not touch between a copy's call and its end.
class PinnedCopy {
 public:
  PinnedCopy(Machine& here, void* to, const void* from, std::size_t bytes)
      : here_(here), to_(to), from_(from), bytes_(bytes) {
    if (here_.pinned.contains(to_, bytes_)) {
      here_.pinned.begin(to_);
      std::memset(to_, DeviceMemory::fresh, bytes_);  // The content is undefined until then.
      before_ = image(to_);
    }
    if (here_.pinned.contains(from_, bytes_)) {
      here_.pinned.begin(from_);
      source_ = image(from_);
    }
  }
  /// When it runs.
  void check() const {
    if (!before_.empty()) here_.pinned.end(to_);
    if (!source_.empty()) here_.pinned.end(from_);
    if (!before_.empty() && before_ != image(to_))
      here_.violate("race: the host writes to pinned memory before a copy has written to it");
    if (!source_.empty() && source_ != image(from_))
      here_.violate("race: the host changes pinned memory before a copy has read it");
  }

 private:
  std::vector<std::byte> image(const void* data) const {
    const auto* begin = static_cast<const std::byte*>(data);
    return {begin, begin + bytes_};
  }
  Machine& here_;
  void* to_;
  const void* from_;
  std::size_t bytes_;
  std::vector<std::byte> before_;
  std::vector<std::byte> source_;
};

cudaError_t memcpy_async(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                         cudaStream_t handle) {
  const CudaCall call("cudaMemcpyAsync");
  Stream* stream = call.stream(handle);
  if (stream == nullptr) return call.give(cudaErrorInvalidResourceHandle);
  if (const auto error = call.broken(stream->device)) return call.give(error);
  if (bytes == 0) return cudaSuccess;
  DeviceMemory& memory = call.here.memory;
  const bool to_device = memory.is_device_address(to);
  const bool from_device = memory.is_device_address(from);
  const auto meant = from_device ? (to_device ? cudaMemcpyDeviceToDevice : cudaMemcpyDeviceToHost)
                                 : (to_device ? cudaMemcpyHostToDevice : cudaMemcpyHostToHost);
  if (kind != cudaMemcpyDefault && kind != meant) {
    call.here.violate(fmt::format("cudaMemcpyAsync of kind {}, but the addresses are of kind {}",
                                  static_cast<int>(kind), static_cast<int>(meant)));
    return call.give(cudaErrorInvalidValue);
  }
  const PinnedCopy pinned(call.here, to, from, bytes);
  std::vector<Touch> touches;
  if (to_device) touches.push_back({to, bytes, true});
  if (from_device) touches.push_back({from, bytes, false});
  call.here.push(*stream,
                 {.run =
                      [&memory, to, from, bytes, to_device, from_device, pinned] {
                        pinned.check();
                        std::memmove(to_device ? memory.bytes(to) : to,
                                     from_device ? memory.bytes(from) : from, bytes);
                      }},
                 touches, "cudaMemcpyAsync");
  return cudaSuccess;
}

cudaError_t memset_async(void* data, int value, std::size_t bytes, cudaStream_t handle) {
  const CudaCall call("cudaMemsetAsync");
  Stream* stream = call.stream(handle);
  if (stream == nullptr) return call.give(cudaErrorInvalidResourceHandle);
  if (const auto error = call.broken(stream->device)) return call.give(error);
  if (bytes == 0) return cudaSuccess;
  const Touch touch{data, bytes, true};
  DeviceMemory& memory = call.here.memory;
  if (!memory.is_device_address(data)) return call.give(cudaErrorInvalidValue);
  call.here.push(
      *stream,
      {.run = [&memory, data, value, bytes] { std::memset(memory.bytes(data), value, bytes); }},
      {&touch, 1}, "cudaMemsetAsync");
  return cudaSuccess;
}

cudaError_t pointer_get_attributes(cudaPointerAttributes* attributes, const void* data) {
  const CudaCall call("cudaPointerGetAttributes");
  *attributes = {};
  const Block* block = call.here.memory.find(data);
  if (call.here.pinned.contains(data, 1)) {
    attributes->type = cudaMemoryTypeHost;
    attributes->device = call.thread.device;
    attributes->devicePointer = const_cast<void*>(data);
    attributes->hostPointer = const_cast<void*>(data);
    return cudaSuccess;
  }
  if (block == nullptr || block->freed) {
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = cudaInvalidDeviceId;
    attributes->hostPointer = const_cast<void*>(data);
    return cudaSuccess;
  }
  attributes->type = cudaMemoryTypeDevice;
  attributes->device = block->device;
  attributes->devicePointer = const_cast<void*>(data);
  return cudaSuccess;
}

}  // namespace

void fill_cuda_memory(backend::nccl::CudaApi& table) {
  table.malloc_async = malloc_async;
  table.free_async = free_async;
  table.mem_pool_create = mem_pool_create;
  table.mem_pool_set_attribute = mem_pool_set_attribute;
  table.mem_pool_trim_to = mem_pool_trim_to;
  table.malloc_from_pool_async = malloc_from_pool_async;
  table.host_alloc = host_alloc;
  table.free_host = free_host;
  table.memcpy_async = memcpy_async;
  table.memset_async = memset_async;
  table.pointer_get_attributes = pointer_get_attributes;
}

std::size_t pinned_bytes() {
  const Lock lock(machine().mutex);
  return machine().pinned.bytes();
}

int kept_by_trim(int device) {
  const Lock lock(machine().mutex);
  return machine().devices[Machine::index(device)].kept_by_trim;
}

}  // namespace tutti::test::nccl_double
