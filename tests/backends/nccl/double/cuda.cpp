// The CUDA runtime of the double.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "backends/nccl/double/capture.hpp"
#include "backends/nccl/double/double.hpp"
#include "backends/nccl/double/machine.hpp"
#include "backends/nccl/double/tables.hpp"

namespace tutti::test::nccl_double {

namespace {

/// One call: the lock, the count, and what every call returns on a broken device. Whatever is not
/// about errors, versions or the choice of a device makes a context on the thread's current one.
class Call {
 public:
  enum class Context { made, not_made };
  explicit Call(const char* called, Context context = Context::made)
      : name(called), thread(this_thread()), here(machine()), lock(here.mutex) {
    ++here.calls[called];
    if (context == Context::made) here.contexts.insert(thread.device);
  }

  cudaError_t give(cudaError_t error) const {
    if (error != cudaSuccess) thread.last_error = error;
    return error;
  }
  /// What the device's error is, or success.
  cudaError_t broken(int device) const {
    return here.devices[Machine::index(device)].faults.sticky;
  }
  Stream* stream(cudaStream_t handle) const { return here.stream(handle, thread.device, name); }

  const char* name;
  ThreadState& thread;
  Machine& here;
  Lock lock;
};

cudaError_t get_device_count(int* count) {
  const Call call("cudaGetDeviceCount", Call::Context::not_made);
  *count = device_count;
  return cudaSuccess;
}

cudaError_t get_device(int* device) {
  const Call call("cudaGetDevice", Call::Context::not_made);
  *device = call.thread.device;
  return cudaSuccess;
}

cudaError_t set_device(int device) {
  const Call call("cudaSetDevice", Call::Context::not_made);
  if (device < 0 || device >= device_count) return call.give(cudaErrorInvalidDevice);
  call.thread.device = device;
  call.here.contexts.insert(device);
  return call.give(call.broken(device));
}

bool has_context(int device) {
  const Call call("cuDevicePrimaryCtxGetState", Call::Context::not_made);
  return call.here.contexts.contains(device);
}

cudaError_t malloc_async(void** data, std::size_t bytes, cudaStream_t handle) {
  const Call call("cudaMallocAsync");
  *data = nullptr;
  Stream* stream = call.stream(handle);
  if (stream == nullptr) return call.give(cudaErrorInvalidResourceHandle);
  if (const auto error = call.broken(stream->device)) return call.give(error);
  if (bytes == 0) return cudaSuccess;
  *data = call.here.memory.allocate(stream->device, bytes);
  if (*data == nullptr) return call.give(cudaErrorMemoryAllocation);
  // Whoever uses it has to come after this in the stream.
  const Touch touch{*data, bytes, true};
  if (stream->capture != nullptr) {  // The address stays, the block comes and goes with a launch.
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

cudaError_t free_async(void* data, cudaStream_t handle) {
  const Call call("cudaFreeAsync");
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
  const Call call("cudaHostAlloc");
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
  const Call call("cudaFreeHost");
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

/// What the host must not touch between a copy's call and its end.
class PinnedCopy {
 public:
  PinnedCopy(Machine& here, void* to, const void* from, std::size_t bytes)
      : here_(here), to_(to), from_(from), bytes_(bytes) {
    if (here_.pinned.contains(to_, bytes_)) {
      here_.pinned.begin(to_);
      std::memset(to_, DeviceMemory::fresh, bytes_);  // Nobody can say what is there until then.
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
  const Call call("cudaMemcpyAsync");
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
  const Call call("cudaMemsetAsync");
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
  const Call call("cudaPointerGetAttributes");
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

cudaError_t stream_create_with_flags(cudaStream_t* handle, unsigned int flags) {
  const Call call("cudaStreamCreateWithFlags");
  *handle = nullptr;
  if (const auto error = call.broken(call.thread.device)) return call.give(error);
  if (flags != cudaStreamDefault && flags != cudaStreamNonBlocking)
    return call.give(cudaErrorInvalidValue);
  *handle = reinterpret_cast<cudaStream_t>(
      call.here.make_stream(call.thread.device, flags == cudaStreamDefault));
  return cudaSuccess;
}

cudaError_t stream_destroy(cudaStream_t handle) {
  const Call call("cudaStreamDestroy");
  if (handle == nullptr) return call.give(cudaErrorInvalidResourceHandle);
  Stream* stream = call.stream(handle);
  if (stream == nullptr) return call.give(cudaErrorInvalidResourceHandle);
  if (stream->capture != nullptr) {
    call.here.violate(call.here.name_of(*stream) + " is destroyed while it captures");
    invalidate(*stream);
    return call.give(cudaErrorStreamCaptureUnsupported);
  }
  if (stream->enqueuing != 0)
    call.here.violate(call.here.name_of(*stream) +
                      " is destroyed while NCCL is still putting calls on it");
  call.here.end_stream(*stream);
  return call.give(call.broken(stream->device));
}

cudaError_t stream_synchronize(cudaStream_t handle) {
  Call call("cudaStreamSynchronize");
  Stream* stream = call.stream(handle);
  if (stream == nullptr) return call.give(cudaErrorInvalidResourceHandle);
  const int device = stream->device;
  if (stream->capture != nullptr) {
    call.here.violate(call.here.name_of(*stream) + " is waited for while it captures");
    invalidate(*stream);
    return call.give(cudaErrorStreamCaptureUnsupported);
  }
  if (call.here.prohibited(call.name)) return call.give(cudaErrorStreamCaptureUnsupported);
  const auto moment = call.here.record(*stream);
  const bool ended = call.here.wait(
      call.lock, [&] { return moment->reached || call.broken(device) != cudaSuccess; },
      "cudaStreamSynchronize of " + call.here.name_of(*stream));
  if (const auto error = call.broken(device)) return call.give(error);
  if (!ended) return call.give(cudaErrorUnknown);
  call.here.observe(device, moment->clock);
  return cudaSuccess;
}

/// Before `stream` waits for `moment`: the edges of captures.
cudaError_t enter_capture(const Call& call, Stream& stream, const Moment& moment) {
  if (!moment.captured) {
    if (stream.capture == nullptr) return cudaSuccess;
    invalidate(stream);
    call.here.violate(call.here.name_of(stream) +
                      " captures and waits for what is not in its capture");
    return cudaErrorStreamCaptureIsolation;
  }
  const auto capture = moment.capture.lock();
  if (capture == nullptr || !capture->open) {
    call.here.violate(call.here.name_of(stream) +
                      " waits for an event of a capture that has ended");
    return cudaErrorCapturedEvent;
  }
  if (stream.capture != nullptr && stream.capture != capture) {
    invalidate(stream);
    capture->invalid = true;
    call.here.violate(call.here.name_of(stream) + " would merge two captures");
    return cudaErrorStreamCaptureMerge;
  }
  if (stream.legacy) {
    capture->invalid = true;
    call.here.violate(call.here.name_of(stream) + " cannot capture");
    return cudaErrorStreamCaptureImplicit;
  }
  if (stream.capture == nullptr) join(capture, stream);
  return cudaSuccess;
}

cudaError_t stream_wait_event(cudaStream_t stream_handle, cudaEvent_t event_handle, unsigned int) {
  const Call call("cudaStreamWaitEvent");
  Stream* stream = call.stream(stream_handle);
  const Event* event = call.here.event(event_handle, call.name);
  if (stream == nullptr || event == nullptr) return call.give(cudaErrorInvalidResourceHandle);
  if (const auto error = call.broken(stream->device)) return call.give(error);
  if (event->last == nullptr) return cudaSuccess;
  if (const auto error = enter_capture(call, *stream, *event->last)) return call.give(error);
  call.here.push(*stream, {.waits = event->last}, {}, "cudaStreamWaitEvent");
  return cudaSuccess;
}

cudaError_t stream_is_capturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  const Call call("cudaStreamIsCapturing");
  const Stream* stream = call.stream(handle);
  if (stream == nullptr) return call.give(cudaErrorInvalidResourceHandle);
  if (stream->legacy)
    for (const auto& capture : call.here.captures)
      for (const Stream* other : capture->streams)
        if (other->blocking && other->device == stream->device)
          return call.give(cudaErrorStreamCaptureImplicit);
  *status = stream->capture == nullptr ? cudaStreamCaptureStatusNone
            : stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                       : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t thread_exchange_stream_capture_mode(cudaStreamCaptureMode* mode) {
  const Call call("cudaThreadExchangeStreamCaptureMode");
  std::swap(*mode, call.thread.mode);
  return cudaSuccess;
}

cudaError_t event_create_with_flags(cudaEvent_t* handle, unsigned int) {
  const Call call("cudaEventCreateWithFlags");
  *handle = nullptr;
  if (const auto error = call.broken(call.thread.device)) return call.give(error);
  *handle = reinterpret_cast<cudaEvent_t>(call.here.make_event(call.thread.device));
  return cudaSuccess;
}

cudaError_t event_record(cudaEvent_t event_handle, cudaStream_t stream_handle) {
  const Call call("cudaEventRecord");
  Event* event = call.here.event(event_handle, call.name);
  Stream* stream = call.stream(stream_handle);
  if (stream == nullptr || event == nullptr) return call.give(cudaErrorInvalidResourceHandle);
  if (const auto error = call.broken(stream->device)) return call.give(error);
  if (event->device != stream->device) {
    call.here.violate(fmt::format("cudaEventRecord of an event of device {} on {}", event->device,
                                  call.here.name_of(*stream)));
    return call.give(cudaErrorInvalidResourceHandle);
  }
  event->last = call.here.record(*stream);
  return cudaSuccess;
}

cudaError_t event_query(cudaEvent_t handle) {
  const Call call("cudaEventQuery");
  const Event* event = call.here.event(handle, call.name);
  if (event == nullptr) return call.give(cudaErrorInvalidResourceHandle);
  if (const auto error = call.broken(event->device)) return call.give(error);
  if (event->last == nullptr) return cudaSuccess;
  if (event->last->captured) {
    call.here.violate("cudaEventQuery of an event that was recorded in a capture");
    if (const auto capture = event->last->capture.lock()) capture->invalid = true;
    return call.give(cudaErrorCapturedEvent);
  }
  if (call.here.prohibited(call.name)) return call.give(cudaErrorStreamCaptureUnsupported);
  call.here.progress();
  if (!event->last->reached) return call.give(cudaErrorNotReady);
  call.here.observe(event->device, event->last->clock);
  return cudaSuccess;
}

cudaError_t event_destroy(cudaEvent_t handle) {
  const Call call("cudaEventDestroy");
  Event* event = call.here.event(handle, call.name);
  if (event == nullptr) return call.give(cudaErrorInvalidResourceHandle);
  event->alive = false;
  return cudaSuccess;
}

cudaError_t get_last_error() {
  const Call call("cudaGetLastError", Call::Context::not_made);
  const auto error = std::exchange(call.thread.last_error, cudaSuccess);
  const auto sticky = call.broken(call.thread.device);
  return sticky != cudaSuccess ? sticky : error;
}

cudaError_t runtime_get_version(int* version) {
  *version = 13000;
  return cudaSuccess;
}

const char* get_error_name(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    default:
      return "another CUDA error of the double";
  }
}

}  // namespace

void fill_cuda_table(backend::nccl::CudaApi& table) {
  table.get_device_count = get_device_count;
  table.get_device = get_device;
  table.set_device = set_device;
  table.malloc_async = malloc_async;
  table.free_async = free_async;
  table.host_alloc = host_alloc;
  table.free_host = free_host;
  table.memcpy_async = memcpy_async;
  table.memset_async = memset_async;
  table.pointer_get_attributes = pointer_get_attributes;
  table.stream_create_with_flags = stream_create_with_flags;
  table.stream_destroy = stream_destroy;
  table.stream_synchronize = stream_synchronize;
  table.stream_wait_event = stream_wait_event;
  table.stream_is_capturing = stream_is_capturing;
  table.thread_exchange_stream_capture_mode = thread_exchange_stream_capture_mode;
  table.event_create_with_flags = event_create_with_flags;
  table.event_record = event_record;
  table.event_query = event_query;
  table.event_destroy = event_destroy;
  table.get_last_error = get_last_error;
  table.runtime_get_version = runtime_get_version;
  table.driver_get_version = runtime_get_version;
  table.get_error_name = get_error_name;
  table.get_error_string = get_error_name;
  table.has_context = has_context;
}

void fill(cudaStream_t handle, float* data, std::size_t count, float value,
          std::chrono::nanoseconds takes) {
  const Call call("a kernel");
  Stream* stream = call.stream(handle);
  if (stream == nullptr) return;
  const Touch touch{data, count * sizeof(float), true};
  call.here.push(*stream,
                 {.run =
                      [memory = &call.here.memory, data, count, value] {
                        std::vector<float> values(count, value);
                        std::memcpy(memory->bytes(data), values.data(), count * sizeof(float));
                      },
                  .takes = takes},
                 {&touch, 1}, "a kernel that fills");
}

void copy(cudaStream_t handle, float* to, const float* from, std::size_t count,
          std::chrono::nanoseconds takes) {
  const Call call("a kernel");
  Stream* stream = call.stream(handle);
  if (stream == nullptr) return;
  const std::size_t bytes = count * sizeof(float);
  const std::array<Touch, 2> touches{Touch{to, bytes, true}, Touch{from, bytes, false}};
  call.here.push(*stream,
                 {.run = [memory = &call.here.memory, to, from,
                          bytes] { std::memcpy(memory->bytes(to), memory->bytes(from), bytes); },
                  .takes = takes},
                 touches, "a kernel that copies");
}

std::set<int> take_devices_in_use() {
  const Lock lock(machine().mutex);
  return std::exchange(machine().contexts, {});
}

std::size_t pinned_bytes() {
  const Lock lock(machine().mutex);
  return machine().pinned.bytes();
}

}  // namespace tutti::test::nccl_double
