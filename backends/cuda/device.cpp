#include "device.hpp"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "values/fail.hpp"

namespace tutti::backend::cuda {

void Pause::operator()() {
  constexpr std::chrono::microseconds yields(200);
  if (naps_ <= 0) {
    const auto now = std::chrono::steady_clock::now();
    if (naps_ < 0) began_ = now;
    naps_ = 0;
    if (now - began_ < yields) return std::this_thread::yield();
  }
  std::this_thread::sleep_for(std::chrono::microseconds(std::min(10 * ++naps_, 200)));
}

Gpu::Gpu(const CudaApi& cuda, int index)
    : cuda_(cuda), index_(index), launching_(process_wide<Launching>(std::pair(&cuda, index))) {
  int count = 0;
  check(cuda, cuda.get_device_count(&count), "cudaGetDeviceCount");
  if (index < 0 || index >= count)
    internal::failf(Errc::unsupported, "there is no cuda:{}: this process sees {} device{}", index,
                    count, count == 1 ? "" : "s");
}

Gpu::~Gpu() {
  const DeviceScope scope(cuda(), index_, std::nothrow);
  for (const auto event : idle_) (void)cuda().event_destroy(event);
}

Gpu::Turn Gpu::turn(Deadline limit) const {
  std::unique_lock lock(launching_.mutex);
  const auto free = [this] { return !launching_.under_way; };
  if (limit.is_none())
    launching_.ended.wait(lock, free);
  else if (!launching_.ended.wait_until(lock, limit.time(), free))
    internal::failf(Errc::timeout,
                    "the deadline passed while another call was being queued on cuda:{}", index_);
  launching_.under_way = true;
  launching_.since = std::chrono::steady_clock::now();
  return Turn(&launching_);
}

std::optional<Gpu::Turn> Gpu::try_turn(std::chrono::nanoseconds patience) const {
  const std::lock_guard lock(launching_.mutex);
  const auto now = std::chrono::steady_clock::now();
  if (launching_.under_way)
    return now - launching_.since < patience ? std::nullopt : std::optional(Turn(nullptr));
  launching_.under_way = true;
  launching_.since = now;
  return Turn(&launching_);
}

Gpu::Turn::Turn(Turn&& other) noexcept : launching_(std::exchange(other.launching_, nullptr)) {}

Gpu::Turn::~Turn() {
  if (launching_ == nullptr) return;
  {
    const std::lock_guard lock(launching_->mutex);
    launching_->under_way = false;
  }
  launching_->ended.notify_one();
}

Gpu::Event Gpu::event() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      const auto event = idle_.back();
      idle_.pop_back();
      return {shared_from_this(), event};
    }
  }
  const DeviceScope scope(cuda(), index_);
  cudaEvent_t event = nullptr;
  check(cuda(), cuda().event_create_with_flags(&event, cudaEventDisableTiming),
        "cudaEventCreateWithFlags");
  return {shared_from_this(), event};
}

Gpu::Event::Event(std::shared_ptr<Gpu> gpu, cudaEvent_t event) noexcept
    : gpu_(std::move(gpu)), event_(event) {}

Gpu::Event::~Event() {
  if (gpu_ == nullptr) return;
  try {
    const std::lock_guard lock(gpu_->mutex_);
    gpu_->idle_.push_back(event_);
  } catch (...) {  // The pool could not grow.
    const DeviceScope scope(gpu_->cuda(), gpu_->index(), std::nothrow);
    (void)gpu_->cuda().event_destroy(event_);
  }
}

void Gpu::Event::record(cudaStream_t stream) {
  check(gpu_->cuda(), gpu_->cuda().event_record(event_, stream), "cudaEventRecord");
}

void Gpu::Event::block(cudaStream_t stream) const {
  check(gpu_->cuda(), gpu_->cuda().stream_wait_event(stream, event_, 0), "cudaStreamWaitEvent");
}

bool Gpu::Event::done() const {
  const DeviceScope scope(gpu_->cuda(), gpu_->index());
  const RelaxedCapture relaxed(gpu_->cuda());
  const auto state = gpu_->cuda().event_query(event_);
  if (state == cudaErrorNotReady) {
    (void)gpu_->cuda().get_last_error();  // Resets the error, so that the program does not see it.
    return false;
  }
  check(gpu_->cuda(), state, "cudaEventQuery");
  return true;
}

constinit thread_local DeviceScope::Current DeviceScope::current_{};
constinit thread_local int RelaxedCapture::depth_ = 0;

DeviceScope::DeviceScope(const CudaApi& cuda, int device) : cuda_(cuda) {
  if (is_current(device)) return;
  check(cuda, cuda.get_device(&before_), "cudaGetDevice");
  if (before_ != device) {
    back_ = cuda.has_context(before_);
    check(cuda, cuda.set_device(device), "cudaSetDevice");
  }
  set_current(device);
}

DeviceScope::DeviceScope(const CudaApi& cuda, int device, std::nothrow_t) noexcept : cuda_(cuda) {
  if (is_current(device) || cuda.get_device(&before_) != cudaSuccess) return;
  if (before_ != device) {
    back_ = cuda.has_context(before_);
    if (cuda.set_device(device) != cudaSuccess) return;
  }
  set_current(device);
}

void DeviceScope::set_current(int device) noexcept {
  if (before_ != device && !back_) outer_ = {};  // The outer scope's device is not restored.
  current_ = {&cuda_, device};
  sets_ = true;
}

DeviceScope::~DeviceScope() {
  if (back_) (void)cuda_.set_device(before_);
  if (sets_) current_ = outer_;
}

bool is_capturing(const CudaApi& cuda, int device, cudaStream_t stream) {
  const DeviceScope scope(cuda, device);  // Each device has a default stream of its own.
  auto status = cudaStreamCaptureStatusNone;
  const auto code = cuda.stream_is_capturing(stream, &status);
  if (code == cudaErrorStreamCaptureImplicit) {
    (void)cuda.get_last_error();
    tutti::fail(Errc::unsupported,
                "the default stream cannot be used while a stream that waits for it is captured "
                "into a CUDA graph; call it outside of the capture or on another stream");
  }
  check(cuda, code, "cudaStreamIsCapturing");
  if (status == cudaStreamCaptureStatusInvalidated)
    tutti::fail(
        Errc::invalid_argument,
        "the capture of the call's stream into a CUDA graph has already failed; capture again");
  return status == cudaStreamCaptureStatusActive;
}

CudaStream::CudaStream(std::shared_ptr<Gpu> gpu, int priority) : gpu_(std::move(gpu)) {
  const DeviceScope scope(gpu_->cuda(), gpu_->index());
  const auto& cuda = gpu_->cuda();
  if (priority == 0)
    check(cuda, cuda.stream_create_with_flags(&stream_, cudaStreamNonBlocking),
          "cudaStreamCreateWithFlags");
  else
    check(cuda, cuda.stream_create_with_priority(&stream_, cudaStreamNonBlocking, priority),
          "cudaStreamCreateWithPriority");
}

CudaStream::~CudaStream() {
  const DeviceScope scope(gpu_->cuda(), gpu_->index(), std::nothrow);
  (void)gpu_->cuda().stream_destroy(stream_);
}

}  // namespace tutti::backend::cuda
