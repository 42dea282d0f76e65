#include "support/fake_device.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tutti::test {

namespace {

constexpr std::uintptr_t alignment = 64;

}  // namespace

void FakeEvent::set() {
  const std::scoped_lock lock(mutex_);
  done_ = true;
  changed_.notify_all();
}

bool FakeEvent::done() const {
  const std::scoped_lock lock(mutex_);
  return done_;
}

bool FakeEvent::wait_until(Deadline deadline) const {
  std::unique_lock lock(mutex_);
  const auto ended = [this] { return done_; };
  if (deadline.is_set() && !deadline.is_none())
    return changed_.wait_until(lock, deadline.time(), ended);
  changed_.wait(lock, ended);
  return true;
}

FakeStream::FakeStream() : thread_([this] { loop(); }) {}

FakeStream::~FakeStream() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void FakeStream::push(std::function<void()> kernel) {
  const std::scoped_lock lock(mutex_);
  queue_.push_back(std::move(kernel));
  changed_.notify_all();
}

std::shared_ptr<FakeEvent> FakeStream::record() {
  auto event = std::make_shared<FakeEvent>();
  push([event] { event->set(); });
  return event;
}

void FakeStream::wait(std::shared_ptr<FakeEvent> event) {
  push([event = std::move(event)] { event->wait_until(Deadline::none()); });
}

void FakeStream::synchronize() {
  record()->wait_until(Deadline::none());
}

void FakeStream::loop() {
  while (true) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const auto kernel = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    kernel();
  }
}

FakeDevice::~FakeDevice() {
  default_stream_.synchronize();
}

void* FakeDevice::allocate(std::size_t bytes, Stream) {
  auto block = std::make_unique<std::byte[]>(bytes + alignment);
  std::fill_n(block.get(), bytes + alignment, fresh);
  const auto address = reinterpret_cast<std::uintptr_t>(block.get());
  auto* data = block.get() + (alignment - address % alignment);
  const std::scoped_lock lock(mutex_);
  blocks_.push_back(std::move(block));
  return data;
}

void FakeDevice::release(void* data, std::size_t bytes, Stream on) noexcept {
  if (data == nullptr) return;
  stream(on).push([data, bytes] { std::memset(data, std::to_integer<int>(freed), bytes); });
}

void FakeDevice::copy(void* to, const void* from, std::size_t bytes, Stream on) {
  stream(on).push([to, from, bytes] { std::memcpy(to, from, bytes); });
  stream(on).synchronize();
}

FakeStream& FakeDevice::stream(Stream stream) noexcept {
  return stream.handle == nullptr ? default_stream_ : *static_cast<FakeStream*>(stream.handle);
}

void FakeDevice::fill(const TensorView& out, float value, std::chrono::nanoseconds takes,
                      Stream on) {
  stream(on).push([out, value, takes] {
    std::this_thread::sleep_for(takes);
    std::fill_n(static_cast<float*>(out.data), out.shape.numel(), value);
  });
}

void FakeDevice::copy_kernel(const TensorView& out, const ConstTensorView& in,
                             std::chrono::nanoseconds takes, Stream on) {
  stream(on).push([out, in, takes] {
    std::this_thread::sleep_for(takes);
    std::memcpy(out.data, in.data, out.bytes());
  });
}

}  // namespace tutti::test
