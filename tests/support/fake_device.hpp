#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <tutti/deadline.hpp>
#include <tutti/memory.hpp>
#include <tutti/tensor.hpp>

// An asynchronous device that exists only in tests. A stream is a thread that runs kernels slowly,
// in the order of queueing. Memory that is read too early or freed too early holds poison.

namespace tutti::test {

/// An event of a stream. Done when everything queued before it has run.
class FakeEvent {
 public:
  void set();
  bool done() const;
  /// True when done.
  bool wait_until(Deadline deadline) const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool done_ = false;
};

class FakeStream {
 public:
  FakeStream();
  ~FakeStream();  ///< Runs the queued kernels.
  FakeStream(const FakeStream&) = delete;
  FakeStream& operator=(const FakeStream&) = delete;

  Stream handle() noexcept { return {this}; }
  void push(std::function<void()> kernel);
  std::shared_ptr<FakeEvent> record();
  /// Orders later work after the event.
  void wait(std::shared_ptr<FakeEvent> event);
  /// Blocks the host until everything queued has run.
  void synchronize();

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool stop_ = false;
  std::thread thread_;  // Last: it uses the others.
};

/// One device of one rank: its memory and its default stream.
class FakeDevice final : public Memory {
 public:
  static constexpr std::byte fresh{0xCD};  ///< The bytes of allocated memory.
  static constexpr std::byte freed{0xDD};  ///< The bytes of released memory.

  explicit FakeDevice(int index) noexcept : index_(index) {}
  ~FakeDevice() override;

  Device device() const noexcept override { return {DeviceType::extension, index_}; }
  void* allocate(std::size_t bytes, Stream stream) override;
  /// Poisons the memory in order on `stream`. The memory stays allocated until the device ends, so
  /// that a late read gets poison.
  void release(void* data, std::size_t bytes, Stream stream) noexcept override;
  /// Copies in order on `stream` and blocks the host, so that either side may be host memory.
  void copy(void* to, const void* from, std::size_t bytes, Stream stream) override;

  /// The stream of a handle; the default stream for null.
  FakeStream& stream(Stream stream) noexcept;

  /// A kernel that writes `value` to every float of `out` after `takes`.
  void fill(const TensorView& out, float value, std::chrono::nanoseconds takes, Stream stream);
  /// A kernel that copies floats after `takes`, within the device.
  void copy_kernel(const TensorView& out, const ConstTensorView& in, std::chrono::nanoseconds takes,
                   Stream stream);

 private:
  int index_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
  FakeStream default_stream_;  // Last: its kernels use the memory.
};

}  // namespace tutti::test
