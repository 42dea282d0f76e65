#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include <tutti/deadline.hpp>
#include <tutti/device.hpp>

#include "api.hpp"
#include "values/fail.hpp"

namespace tutti::backend::cuda {

inline cudaStream_t to_cuda(Stream stream) noexcept {
  return static_cast<cudaStream_t>(stream.handle);
}

/// Returns the T of `key`. The first call with this key constructs it from `args`; it is never
/// destroyed. Called from any thread.
template <typename T, typename Key, typename... Args>
T& process_wide(const Key& key, Args&&... args) {
  static std::mutex guard;
  static auto& all = *new std::map<Key, T>;
  const std::lock_guard lock(guard);
  return all.try_emplace(key, std::forward<Args>(args)...).first->second;
}

/// Pauses for polling loops: the thread yields for 200 us, in which NCCL queues a call on a thread
/// of its own, and then naps for longer and longer.
class Pause {
 public:
  void operator()();

 private:
  std::chrono::steady_clock::time_point began_{};
  int naps_ = -1;  // -1: not called yet.
};

/// Polls `ready` with growing pauses until it returns true. Calls `look`, which may throw, before
/// each pause. @throws Error timeout, with the text `late`, when the limit has passed.
template <typename Ready, typename Look>
void await(Deadline limit, const char* late, const Ready& ready, const Look& look) {
  for (Pause pause; !ready(); pause()) {
    look();
    if (limit.expired()) tutti::fail(Errc::timeout, late);
  }
}

/// The lock of a device: at most one call is being queued on it. One per device and table.
struct Launching {
  std::mutex mutex;
  std::condition_variable ended;
  bool under_way = false;
  std::chrono::steady_clock::time_point since{};  ///< When the call under way began.
};

/// The device of one group, and a pool of CUDA events on it. Called from any thread.
class Gpu : public std::enable_shared_from_this<Gpu> {
 public:
  /// @throws Error unsupported unless there is such a device.
  Gpu(const CudaApi& cuda, int index);
  virtual ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  /// A CUDA event from the pool. Move-only; the destructor returns the event to the pool.
  class Event {
   public:
    Event(Event&& other) noexcept = default;
    Event& operator=(Event&& other) = delete;
    ~Event();

    void record(cudaStream_t stream);
    /// Orders later work on `stream` after the event.
    void block(cudaStream_t stream) const;
    /// True when all work before the event has run. May be called while other threads capture, in
    /// any mode. @throws Error.
    bool done() const;

   private:
    friend class Gpu;
    Event(std::shared_ptr<Gpu> gpu, cudaEvent_t event) noexcept;
    std::shared_ptr<Gpu> gpu_;
    cudaEvent_t event_;
  };
  Event event();

  /// The right to queue a call on the device: calls of two groups do not interleave. Move-only; may
  /// be destroyed on another thread.
  class Turn {
   public:
    Turn(Turn&& other) noexcept;
    Turn& operator=(Turn&& other) = delete;
    ~Turn();

   private:
    friend class Gpu;
    explicit Turn(Launching* launching) noexcept : launching_(launching) {}
    Launching* launching_;
  };
  /// Blocks until no other call is being queued on the device. @throws Error timeout.
  Turn turn(Deadline limit) const;
  /// The same without blocking: empty while another call is being queued. A call that has taken
  /// longer than `patience` may wait for its peers, and they for the caller: then the result lets
  /// the caller queue beside that call.
  std::optional<Turn> try_turn(std::chrono::nanoseconds patience) const;

  const CudaApi& cuda() const noexcept { return cuda_; }
  int index() const noexcept { return index_; }

 private:
  const CudaApi& cuda_;
  int index_;
  Launching& launching_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> idle_;
};

/// Sets the thread's current device. The destructor restores the previous device if the process has
/// a context on it; otherwise cudaSetDevice() would create a context, which takes memory. On the
/// library's own threads, which set their device once (use_device()), a scope changes nothing. A
/// scope within another scope of the same device on the same thread makes no call of CUDA.
///
/// Required around all CUDA calls that depend on the current device. Querying or destroying an
/// event or a stream does too: it creates a context on the current device if there is none.
class DeviceScope {
 public:
  DeviceScope(const CudaApi& cuda, int device);
  /// For destructors: ignores errors of the device.
  DeviceScope(const CudaApi& cuda, int device, std::nothrow_t) noexcept;
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  /// The innermost scope of a thread that has set its device.
  struct Current {
    const CudaApi* cuda;  // Null: there is none.
    int device;
  };
  static constinit thread_local Current current_;
  bool is_current(int device) const noexcept {
    return current_.cuda == &cuda_ && current_.device == device;
  }
  void set_current(int device) noexcept;

  const CudaApi& cuda_;
  Current outer_ = current_;
  int before_ = 0;
  bool back_ = false;
  bool sets_ = false;  // current_, which the destructor restores.
};
inline void use_device(const CudaApi& cuda, int device) noexcept {
  (void)cuda.set_device(device);  // The next call reports an error.
}

/// Lets the thread query events or make streams while other threads capture in a mode that would
/// prohibit it. Only for calls that do not touch captured work. Requires a DeviceScope. Within
/// another one on the same thread it makes no call of CUDA.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const CudaApi& cuda) noexcept : cuda_(cuda) {
    if (depth_++ == 0) swap();
  }
  ~RelaxedCapture() {
    if (--depth_ == 0) swap();
  }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  /// Ignores the result: the function fails only for an invalid mode.
  void swap() noexcept { (void)cuda_.thread_exchange_stream_capture_mode(&mode_); }

  static constinit thread_local int depth_;  // Of the open scopes of the thread.

  const CudaApi& cuda_;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

/// True while the stream is captured into a graph. @throws Error invalid_argument when the capture
/// has failed; unsupported for the default stream while a stream that waits for it is captured.
bool is_capturing(const CudaApi& cuda, int device, cudaStream_t stream);
inline bool is_capturing(const Gpu& gpu, cudaStream_t stream) {
  return is_capturing(gpu.cuda(), gpu.index(), stream);
}

/// A stream that does not synchronise with the default stream.
class CudaStream {
 public:
  /// `priority`: 0 is the lowest, -1 a higher one.
  explicit CudaStream(std::shared_ptr<Gpu> gpu, int priority = 0);
  ~CudaStream();
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  cudaStream_t get() const noexcept { return stream_; }
  Stream handle() const noexcept { return {stream_}; }

 private:
  std::shared_ptr<Gpu> gpu_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace tutti::backend::cuda
