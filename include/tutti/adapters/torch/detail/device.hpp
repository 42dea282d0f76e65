#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <tutti/adapters/torch/detail/types.hpp>
#include <tutti/call_options.hpp>
#include <tutti/error.hpp>
#include <tutti/memory.hpp>

// Streams and memory of torch's devices. Everything goes through torch's interfaces for all device
// types, so programs need neither CUDA's headers nor torch's CUDA libraries at link time.

namespace tutti::libtorch::detail {

/// The current stream of this thread on `device`, which is not the host.
inline c10::Stream current_stream(const c10::Device& device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

template <typename S>
Stream stream_of(const S& stream) {
  if constexpr (requires { stream.native_handle(); }) return {stream.native_handle()};
  if (stream.id() == 0) return {};  // The default stream, in all versions.
  fail(Errc::unsupported,
       "this version of LibTorch does not tell the handle of a stream; make the default stream "
       "current");
}

/// A stream of torch's pool for work beside `current`; in versions that do not tell the handle of
/// such a stream, `current`.
template <typename S>
S beside(const S& current) {
  if constexpr (requires { current.native_handle(); })
    return c10::impl::VirtualGuardImpl(current.device_type())
        .getStreamFromGlobalPool(current.device());
  return current;
}

/// Orders what is put on `later` from now on after what is on `earlier`.
inline void order(const c10::Stream& earlier, const c10::Stream& later) {
  if (earlier == later) return;
  c10::Event event(earlier.device_type());
  event.record(earlier);
  event.block(later);
}

/// The host waits for torch's current stream.
inline void synchronize(const c10::Device& device) {
  if (!device.is_cpu()) current_stream(device).synchronize();
}

/// Puts a call on torch's current stream of `device`.
inline CallOptions on_current_stream(const c10::Device& device, CallOptions options = {}) {
  if (device.is_cpu()) return options;
  const Stream current = stream_of(current_stream(device));
  if (options.stream.handle != nullptr && !(options.stream == current))
    fail(Errc::invalid_argument,
         "torch: options.stream is not torch's current stream of " + device.str() +
             ", on which functions of tensors run; leave it out, or use a c10::StreamGuard");
  options.stream = current;
  return options;
}

/// at::from_blob() that does not ask CUDA for the device of the address.
inline at::Tensor from_blob(void* data, at::IntArrayRef sizes, const at::TensorOptions& options,
                            std::function<void(void*)> deleter = {}) {
  return at::for_blob(data, sizes)
      .deleter(std::move(deleter))
      .options(options)
      .target_device(options.device())
      .make_tensor();
}

/// Memory of torch's allocator for a device. Blocks belong to torch's current stream.
class DeviceMemory final : public Memory {
 public:
  explicit DeviceMemory(const c10::Device& device) : device_(device) {}

  Device device() const noexcept override { return from_torch(device_); }
  void* allocate(std::size_t bytes, Stream stream) override {
    check(stream);
    const c10::DeviceGuard guard(device_);
    c10::DataPtr block;
    try {
      block = c10::GetAllocator(device_.type())->allocate(std::max<std::size_t>(bytes, 1));
    } catch (const c10::Error& error) {
      fail(Errc::resource_exhausted, error.what_without_backtrace());
    }
    void* const data = block.get();
    const std::lock_guard lock(mutex_);
    blocks_.insert_or_assign(data, std::move(block));
    return data;
  }
  void release(void* data, std::size_t, Stream) noexcept override { take(data); }
  /// Both sides are on the device.
  void copy(void* to, const void* from, std::size_t bytes, Stream stream) override {
    check(stream);
    const auto view = [&](const void* data) {
      return from_blob(const_cast<void*>(data), {static_cast<std::int64_t>(bytes)},
                       at::TensorOptions(at::kByte).device(device_));
    };
    if (bytes != 0) view(to).copy_(view(from));
  }
  /// Gives up a block; empty for an address of other memory. With its own deleter, torch knows the
  /// block in record_stream().
  c10::DataPtr take(const void* data) noexcept {
    const std::lock_guard lock(mutex_);
    const auto block = blocks_.extract(data);
    return block.empty() ? c10::DataPtr() : std::move(block.mapped());
  }

 private:
  void check(Stream stream) const {
    if (!(stream == stream_of(current_stream(device_))))
      fail(Errc::invalid_argument,
           "torch: its memory of " + device_.str() +
               " is for calls on torch's current stream, and this call is on another");
  }

  const c10::Device device_;
  std::mutex mutex_;
  std::map<const void*, c10::DataPtr> blocks_;  // Those that no tensor of torch owns.
};

/// Never destroyed. A device without an index is the current one.
inline DeviceMemory& device_memory(c10::Device device) {
  if (!device.has_index()) device = c10::impl::VirtualGuardImpl(device.type()).getDevice();
  static auto& mutex = *new std::mutex;
  static auto& all = *new std::map<std::pair<c10::DeviceType, int>, DeviceMemory>;
  const std::lock_guard lock(mutex);
  return all.try_emplace({device.type(), device.index()}, device).first->second;
}

}  // namespace tutti::libtorch::detail
