#include "memory.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "device.hpp"
#include "values/fail.hpp"

namespace tutti::backend::cuda {
namespace {

class CudaMemory : public Memory {
 public:
  CudaMemory(const CudaApi& cuda, int index) : cuda_(cuda), index_(index) {}

  Device device() const noexcept override { return {DeviceType::cuda, index_}; }

  void* allocate(std::size_t bytes, Stream stream) override {
    const DeviceScope scope(cuda_, index_);
    void* data = nullptr;
    const auto [code, function] = take(&data, std::max<std::size_t>(bytes, 1), to_cuda(stream));
    if (code == cudaSuccess) return data;
    const Error error = cuda_error(cuda_, code, function);
    throw Error(error.code(),
                fmt::format("{} bytes on cuda:{}: {}", bytes, index_, error.message()));
  }

  void release(void* data, std::size_t, Stream stream) noexcept override {
    if (data == nullptr) return;
    try {
      const DeviceScope scope(cuda_, index_);
      check(cuda_, cuda_.free_async(data, to_cuda(stream)), "cudaFreeAsync");
    } catch (...) {  // The device's context and its memory are lost.
    }
  }

  void copy(void* to, const void* from, std::size_t bytes, Stream stream) override {
    if (bytes == 0) return;
    const DeviceScope scope(cuda_, index_);
    const bool for_host = on_host(to) || on_host(from);
    if (for_host && is_capturing(cuda_, index_, to_cuda(stream)))
      tutti::fail(Errc::unsupported,
                  "the stream is being captured into a CUDA graph, and a copy from or to host "
                  "memory waits on the host until it has ended; copy outside of the capture");
    check(cuda_, cuda_.memcpy_async(to, from, bytes, cudaMemcpyDefault, to_cuda(stream)),
          "cudaMemcpyAsync");
    // The host accesses its memory outside of any stream, so the copy has to end before the return.
    if (for_host) check(cuda_, cuda_.stream_synchronize(to_cuda(stream)), "cudaStreamSynchronize");
  }

 protected:
  struct Taken {
    cudaError_t code;
    const char* function;  // Of CUDA, which returned the code.
  };
  /// Requires a DeviceScope.
  virtual Taken take(void** data, std::size_t bytes, cudaStream_t stream) {
    return {cuda_.malloc_async(data, bytes, stream), "cudaMallocAsync"};
  }
  const CudaApi& cuda_;
  int index_;

 private:
  bool on_host(const void* data) const {
    // CUDA 13 writes more bytes than the struct in the headers of 12 has.
    struct {
      cudaPointerAttributes known{};
      std::byte later[128]{};
    } attributes;
    check(cuda_, cuda_.pointer_get_attributes(&attributes.known, data), "cudaPointerGetAttributes");
    return attributes.known.type != cudaMemoryTypeDevice;
  }
};

class ScratchMemory final : public CudaMemory {
 public:
  using CudaMemory::CudaMemory;

  std::shared_ptr<Memory> share() {
    const std::lock_guard lock(mutex_);
    auto shared = shared_.lock();
    if (shared == nullptr)
      shared_ = shared = std::shared_ptr<Memory>(this, [this](Memory*) { trim(); });
    return shared;
  }

 private:
  Taken take(void** data, std::size_t bytes, cudaStream_t stream) override {
    std::call_once(made_, [this] { make_pool(); });
    return {cuda_.malloc_from_pool_async(data, bytes, pool_, stream), "cudaMallocFromPoolAsync"};
  }
  void make_pool() {
    // Another thread's capture would prohibit it.
    const RelaxedCapture relaxed(cuda_);
    cudaMemPoolProps properties{};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location = {cudaMemLocationTypeDevice, index_};
    check(cuda_, cuda_.mem_pool_create(&pool_, &properties), "cudaMemPoolCreate");
    std::uint64_t keeps = UINT64_MAX;
    int waits = 0;
    check(cuda_, cuda_.mem_pool_set_attribute(pool_, cudaMemPoolAttrReleaseThreshold, &keeps),
          "cudaMemPoolSetAttribute");
    check(cuda_,
          cuda_.mem_pool_set_attribute(pool_, cudaMemPoolReuseAllowInternalDependencies, &waits),
          "cudaMemPoolSetAttribute");
  }

  void trim() noexcept {
    try {
      const DeviceScope scope(cuda_, index_);
      std::call_once(made_, [this] { make_pool(); });
      const RelaxedCapture relaxed(cuda_);
      check(cuda_, cuda_.mem_pool_trim_to(pool_, 0), "cudaMemPoolTrimTo");
    } catch (...) {  // The device's context and its memory are lost.
    }
  }

  std::once_flag made_;
  cudaMemPool_t pool_ = nullptr;  // Never destroyed, like this object.
  std::mutex mutex_;
  std::weak_ptr<Memory> shared_;
};

}  // namespace

Memory& cuda_memory(const CudaApi& cuda, int device) {
  return process_wide<CudaMemory>(std::pair(&cuda, device), cuda, device);
}

std::shared_ptr<Memory> scratch_memory(const CudaApi& cuda, int device) {
  return process_wide<ScratchMemory>(std::pair(&cuda, device), cuda, device).share();
}

}  // namespace tutti::backend::cuda
