#include "ddp/buffer_broadcast.hpp"

#include <cstdint>
#include <utility>

#include "ddp/layout.hpp"

namespace tutti::ddp {
namespace {

std::int64_t padded_bytes(const Parameter& buffer) {
  return padded_numel(buffer.value) * static_cast<std::int64_t>(size_of(buffer.value.dtype));
}

}  // namespace

BufferBroadcast::BufferBroadcast(ProcessGroup& group, std::vector<Parameter> buffers,
                                 const ReducerOptions& options)
    : group_(group), buffers_(std::move(buffers)) {
  call_.timeout = options.timeout;
  call_.name = "ddp buffers";
  std::int64_t bytes = 0;
  for (const Parameter& buffer : buffers_) bytes += padded_bytes(buffer);
  array_ = Tensor(group.memory(), Shape{bytes}, DType::u8);
}

void BufferBroadcast::copy(Way way, Stream stream) {
  auto* place = static_cast<std::byte*>(array_.data());
  for (const Parameter& buffer : buffers_) {
    const TensorView& v = buffer.value;
    if (v.bytes() != 0) {
      if (way == Way::into_array)
        group_.memory().copy(place, v.data, v.bytes(), stream);
      else
        group_.memory().copy(v.data, place, v.bytes(), stream);
    }
    place += padded_bytes(buffer);
  }
}

BufferBroadcast::~BufferBroadcast() {
  wait();
}

/// Waits until the stream of the last run uses the array no more.
void BufferBroadcast::wait() noexcept {
  if (array_.bytes() == 0 || array_.device().type == DeviceType::cpu) return;
  std::byte probe{};
  try {
    group_.memory().copy(&probe, array_.data(), 1, call_.stream);
  } catch (...) {  // The device is lost.
  }
}

void BufferBroadcast::run(Stream stream) {
  if (array_.bytes() == 0) return;
  if (!(call_.stream == stream)) wait();
  call_.stream = stream;
  if (group_.rank() == 0) copy(Way::into_array, stream);
  group_.broadcast(array_, 0, call_);
  if (group_.rank() != 0) copy(Way::out_of_array, stream);
}

}  // namespace tutti::ddp
