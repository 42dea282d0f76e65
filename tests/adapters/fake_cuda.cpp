#include "fake_cuda.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include "backends/nccl/groups.hpp"
#include "backends/nccl/staged_groups.hpp"

namespace tutti::backend::local {
extern const BackendEntry entry;
}

namespace tutti::test {
namespace {

using nccl_double::cuda;

constexpr int device_count = 8;
constexpr c10::DeviceType type = c10::kCUDA;

// The id of a stream is its handle, and 0 the default stream.
thread_local std::array<c10::StreamId, device_count> current_streams{};

cudaStream_t handle_of(const c10::Stream& stream) {
  return reinterpret_cast<cudaStream_t>(stream.id());
}
c10::Stream current_stream(c10::DeviceIndex device) {
  return c10::Stream(c10::Stream::UNSAFE, {type, device},
                     current_streams[static_cast<std::size_t>(device)]);
}
void wait_for(cudaStream_t waits, cudaStream_t for_this) {
  cudaEvent_t event = nullptr;
  cuda().event_create_with_flags(&event, cudaEventDisableTiming);
  cuda().event_record(event, for_this);
  cuda().stream_wait_event(waits, event, 0);
  cuda().event_destroy(event);
}

/// Frees a block on the stream that allocated it, after the streams that were recorded.
class Allocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device device = c10::impl::getDeviceGuardImpl(type)->getDevice();
    if (bytes == 0) return {nullptr, device};
    const cudaStream_t stream = handle_of(current_stream(device.index()));
    void* data = nullptr;
    TORCH_CHECK(cuda().malloc_async(&data, bytes, stream) == cudaSuccess, "no memory");
    const std::lock_guard lock(mutex_);
    blocks_[data] = {stream, device.index(), {}};
    return {data, data, &free, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free; }
  void copy_data(void*, const void*, std::size_t) const override { TORCH_CHECK(false, "unused"); }

  void record(const c10::DataPtr& data, const c10::Stream& stream) {
    if (data.get_deleter() != &free) return;  // As torch's: the block of another allocator.
    const std::lock_guard lock(mutex_);
    auto& block = blocks_.at(data.get());
    if (block.stream != handle_of(stream)) block.used_by.push_back(handle_of(stream));
  }

  static Allocator& instance() {
    static auto& always = *new Allocator;
    return always;
  }

 private:
  struct Block {
    cudaStream_t stream = nullptr;
    c10::DeviceIndex device = 0;
    std::vector<cudaStream_t> used_by;
  };
  static void free(void* data) {
    auto& self = instance();
    std::unique_lock lock(self.mutex_);
    const Block block = std::move(self.blocks_.extract(data).mapped());
    lock.unlock();
    const c10::DeviceGuard guard({type, block.device});
    for (cudaStream_t user : block.used_by) wait_for(block.stream, user);
    cuda().free_async(data, block.stream);
  }

  std::mutex mutex_;
  std::map<void*, Block> blocks_;
};

struct GuardImpl final : c10::impl::DeviceGuardImplInterface {
  static inline std::array<c10::StreamId, device_count> pool{};  // One stream of each device.

  c10::DeviceType type() const override { return test::type; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override {
    int index = 0;
    cuda().get_device(&index);
    return {test::type, static_cast<c10::DeviceIndex>(index)};
  }
  void setDevice(c10::Device device) const override { uncheckedSetDevice(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    cuda().set_device(device.index());
  }
  c10::Stream getStream(c10::Device device) const override {
    return current_stream(device.has_index() ? device.index() : getDevice().index());
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    const c10::DeviceGuard guard(device);
    cudaStream_t stream = nullptr;
    cuda().stream_create_with_flags(&stream, cudaStreamNonBlocking);
    return c10::Stream(c10::Stream::UNSAFE, device, reinterpret_cast<c10::StreamId>(stream));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    auto& stream = pool[static_cast<std::size_t>(device.index())];
    if (stream == 0) stream = getNewStream(device, 0).id();
    return c10::Stream(c10::Stream::UNSAFE, device, stream);
  }
  static void empty_pool(c10::Device device) {
    const auto stream = std::exchange(pool[static_cast<std::size_t>(device.index())], 0);
    if (stream != 0) cuda().stream_destroy(reinterpret_cast<cudaStream_t>(stream));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = current_stream(stream.device_index());
    current_streams[static_cast<std::size_t>(stream.device_index())] = stream.id();
    return before;
  }
  void* getStreamNativeHandle(c10::Stream stream) const override { return handle_of(stream); }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count; }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag) const override {
    const c10::DeviceGuard guard(stream.device());
    if (*event == nullptr)
      cuda().event_create_with_flags(reinterpret_cast<cudaEvent_t*>(event), cudaEventDisableTiming);
    cuda().event_record(static_cast<cudaEvent_t>(*event), handle_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    const c10::DeviceGuard guard(stream.device());
    if (event != nullptr)
      cuda().stream_wait_event(handle_of(stream), static_cast<cudaEvent_t>(event), 0);
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || cuda().event_query(static_cast<cudaEvent_t>(event)) == cudaSuccess;
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    if (event != nullptr) cuda().event_destroy(static_cast<cudaEvent_t>(event));
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    const c10::DeviceGuard guard(stream.device());
    cuda().stream_synchronize(handle_of(stream));
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    Allocator::instance().record(data, stream);
  }
};
C10_REGISTER_GUARD_IMPL(CUDA, GuardImpl)
const bool has_allocator = [] {
  c10::SetAllocator(type, &Allocator::instance());
  return true;
}();

// Kernels of the device type. All others run on the host.

constexpr c10::DispatchKeySet keys(c10::DispatchKey::CUDA);

at::Tensor empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(sizes, &Allocator::instance(), keys, dtype.value_or(at::kFloat),
                                   format);
}
at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(sizes, strides, &Allocator::instance(), keys,
                                           dtype.value_or(at::kFloat));
}

/// The bytes from the first to the last element.
std::size_t span_of(const at::Tensor& x) {
  return at::detail::computeStorageNbytes(x.sizes(), x.strides(), x.itemsize());
}
/// A copy on the host with the same strides. The host waits.
at::Tensor to_host(const at::Tensor& x) {
  const c10::DeviceGuard guard(x.device());
  const cudaStream_t stream = handle_of(current_stream(x.get_device()));
  at::Tensor host = at::empty_strided(x.sizes(), x.strides(), x.options().device(at::kCPU));
  cuda().memcpy_async(host.data_ptr(), x.const_data_ptr(), span_of(x), cudaMemcpyDeviceToHost,
                      stream);
  cuda().stream_synchronize(stream);
  return host;
}
/// Writes in the order of the current stream, for which the host does not wait.
void to_device(const at::Tensor& x, const at::Tensor& host) {
  const c10::DeviceGuard guard(x.device());
  const cudaStream_t stream = handle_of(current_stream(x.get_device()));
  cudaStream_t side = nullptr;
  cuda().stream_create_with_flags(&side, cudaStreamNonBlocking);
  void* staging = nullptr;
  cuda().malloc_async(&staging, span_of(x), side);
  cuda().memcpy_async(staging, host.const_data_ptr(), span_of(x), cudaMemcpyHostToDevice, side);
  cuda().stream_synchronize(side);
  cuda().stream_destroy(side);
  cuda().memcpy_async(x.mutable_data_ptr(), staging, span_of(x), cudaMemcpyDeviceToDevice, stream);
  cuda().free_async(staging, stream);
}
at::Tensor& copy_(at::Tensor& to, const at::Tensor& from, bool) {
  if (to.numel() == 0) return to;
  const at::Tensor source = from.is_cuda() ? to_host(from) : from;
  if (!to.is_cuda()) return to.copy_(source);
  at::Tensor host =
      to.is_contiguous() ? at::empty(to.sizes(), to.options().device(at::kCPU)) : to_host(to);
  to_device(to, host.copy_(source));
  return to;
}
at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (from.sizes() != to.sizes()) {  // An output that the caller left empty.
    const at::Tensor larger = at::empty(from.sizes(), to.options());
    to.unsafeGetTensorImpl()->set_storage_keep_dtype(larger.storage());
    to.unsafeGetTensorImpl()->set_sizes_contiguous(from.sizes());
  }
  return to.copy_(from);
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("copy_", copy_);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
}
void on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack, true);
}
TORCH_LIBRARY_IMPL(_, CUDA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_host>());
}

}  // namespace

void on_cuda_threads(int size, const std::function<void(int rank, c10::Device device)>& body) {
  on_threads(size, [&](int rank) {
    const c10::Device device(type, static_cast<c10::DeviceIndex>(rank));
    const c10::DeviceGuard guard(device);
    const c10::Stream stream = GuardImpl().getNewStream(device, 0);
    const auto end = [&] {
      stream.synchronize();
      GuardImpl::empty_pool(device);
      cuda().stream_destroy(handle_of(stream));
    };
    try {
      const c10::StreamGuard on_stream(stream);
      body(rank, device);
    } catch (...) {
      end();
      throw;
    }
    end();
  });
}

void on_cuda_ranks(const CudaWorld& world,
                   const std::function<void(ProcessGroup& group, c10::Device device)>& body) {
  const auto store = make_memory_store();
  const bool nccl = std::string(world.backend) == "nccl";
  on_cuda_threads(world.size, [&](int rank, c10::Device device) {
    ProcessGroup group =
        nccl ? nccl_double::make_group(rank, world.size, store, {})
             : nccl_double::make_staged_group(backend::local::entry, rank, world.size, rank, store);
    try {
      body(group, device);
    } catch (...) {
      group.abort("a rank left the test");
      throw;
    }
  });
}

}  // namespace tutti::test

namespace at {
// Without it torch believes that there is no accelerator, and its backward uses no stream.
struct CUDAHooks final : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return tutti::test::device_count; }
};
REGISTER_CUDA_HOOKS(CUDAHooks)
}  // namespace at
