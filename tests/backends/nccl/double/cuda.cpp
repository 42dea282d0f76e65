// The CUDA runtime of the double: devices, streams and events.

#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "backends/nccl/double/capture.hpp"
#include "backends/nccl/double/cuda_call.hpp"
#include "backends/nccl/double/double.hpp"
#include "backends/nccl/double/tables.hpp"

namespace tutti::test::nccl_double {

namespace {

cudaError_t get_device_count(int* count) {
  const CudaCall call("cudaGetDeviceCount", CudaCall::Context::not_made);
  *count = device_count;
  return cudaSuccess;
}

cudaError_t get_device(int* device) {
  const CudaCall call("cudaGetDevice", CudaCall::Context::not_made);
  *device = call.thread.device;
  return cudaSuccess;
}

cudaError_t set_device(int device) {
  const CudaCall call("cudaSetDevice", CudaCall::Context::not_made);
  if (device < 0 || device >= device_count) return call.give(cudaErrorInvalidDevice);
  call.thread.device = device;
  call.here.contexts.insert(device);
  return call.give(call.broken(device));
}

bool has_context(int device) {
  const CudaCall call("cuDevicePrimaryCtxGetState", CudaCall::Context::not_made);
  return call.here.contexts.contains(device);
}

cudaError_t stream_create_with_flags(cudaStream_t* handle, unsigned int flags) {
  const CudaCall call("cudaStreamCreateWithFlags");
  *handle = nullptr;
  if (const auto error = call.broken(call.thread.device)) return call.give(error);
  if (flags != cudaStreamDefault && flags != cudaStreamNonBlocking)
    return call.give(cudaErrorInvalidValue);
  *handle = reinterpret_cast<cudaStream_t>(
      call.here.make_stream(call.thread.device, flags == cudaStreamDefault));
  return cudaSuccess;
}

cudaError_t stream_create_with_priority(cudaStream_t* handle, unsigned int flags, int) {
  return stream_create_with_flags(handle, flags);
}

cudaError_t stream_destroy(cudaStream_t handle) {
  const CudaCall call("cudaStreamDestroy");
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
  CudaCall call("cudaStreamSynchronize");
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
cudaError_t enter_capture(const CudaCall& call, Stream& stream, const Moment& moment) {
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
  const CudaCall call("cudaStreamWaitEvent");
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
  const CudaCall call("cudaStreamIsCapturing");
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
  const CudaCall call("cudaThreadExchangeStreamCaptureMode");
  std::swap(*mode, call.thread.mode);
  return cudaSuccess;
}

cudaError_t event_create_with_flags(cudaEvent_t* handle, unsigned int) {
  const CudaCall call("cudaEventCreateWithFlags");
  *handle = nullptr;
  if (const auto error = call.broken(call.thread.device)) return call.give(error);
  *handle = reinterpret_cast<cudaEvent_t>(call.here.make_event(call.thread.device));
  return cudaSuccess;
}

cudaError_t event_record(cudaEvent_t event_handle, cudaStream_t stream_handle) {
  const CudaCall call("cudaEventRecord");
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
  const CudaCall call("cudaEventQuery");
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
  const CudaCall call("cudaEventDestroy");
  Event* event = call.here.event(handle, call.name);
  if (event == nullptr) return call.give(cudaErrorInvalidResourceHandle);
  event->alive = false;
  return cudaSuccess;
}

cudaError_t get_last_error() {
  const CudaCall call("cudaGetLastError", CudaCall::Context::not_made);
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
  fill_cuda_memory(table);
  fill_graphs(table);
  table.get_device_count = get_device_count;
  table.get_device = get_device;
  table.set_device = set_device;
  table.stream_create_with_flags = stream_create_with_flags;
  table.stream_create_with_priority = stream_create_with_priority;
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
  const CudaCall call("a kernel");
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
  const CudaCall call("a kernel");
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

}  // namespace tutti::test::nccl_double
