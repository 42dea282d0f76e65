#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <new>
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

/// The T of `key`, made of `args` by the first call and kept for as long as the process runs.
/// Called from any thread.
template <typename T, typename Key, typename... Args>
T& process_wide(const Key& key, Args&&... args) {
  static std::mutex guard;
  static auto& all = *new std::map<Key, T>;
  const std::lock_guard lock(guard);
  return all.try_emplace(key, std::forward<Args>(args)...).first->second;
}

/// Pauses that grow, for loops that ask again and again.
class Pause {
 public:
  void operator()();

 private:
  int turns_ = 0;
};

/// Pauses until `ready()`; calls `look`, which may throw, in between. @throws Error timeout with
/// the text `late` when the limit has passed.
template <typename Ready, typename Look>
void await(Deadline limit, const char* late, const Ready& ready, const Look& look) {
  for (Pause pause; !ready(); pause()) {
    look();
    if (limit.expired()) tutti::fail(Errc::timeout, late);
  }
}

/// The state of a device on which at most one call is being queued. One per device and process.
struct Launching {
  std::mutex mutex;
  std::condition_variable ended;
  bool under_way = false;
};

/// The device of one group, and what is taken from it again and again. Called from any thread.
class Gpu : public std::enable_shared_from_this<Gpu> {
 public:
  /// @throws Error unsupported unless there is such a device.
  Gpu(const CudaApi& cuda, int index);
  virtual ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  /// A point of a stream, from a pool. Move-only; goes back when it ends.
  class Event {
   public:
    Event(Event&& other) noexcept = default;
    Event& operator=(Event&& other) = delete;
    ~Event();

    void record(cudaStream_t stream);
    /// Puts later work on `stream` behind it.
    void block(cudaStream_t stream) const;
    /// True when everything before it has run. Also while other threads capture into a graph, in
    /// any mode. @throws Error.
    bool done() const;

   private:
    friend class Gpu;
    Event(std::shared_ptr<Gpu> gpu, cudaEvent_t event) noexcept;
    std::shared_ptr<Gpu> gpu_;
    cudaEvent_t event_;
  };
  Event event();

  /// Had while a call is queued: no two groups interleave on a device. Move-only; may be begun on
  /// one thread and ended on another.
  class Turn {
   public:
    Turn(Turn&& other) noexcept;
    Turn& operator=(Turn&& other) = delete;
    ~Turn();

   private:
    friend class Gpu;
    explicit Turn(Launching& launching) noexcept : launching_(&launching) {}
    Launching* launching_;
  };
  /// @throws Error timeout.
  Turn turn(Deadline limit) const;

  const CudaApi& cuda() const noexcept { return cuda_; }
  int index() const noexcept { return index_; }

 private:
  const CudaApi& cuda_;
  int index_;
  Launching& launching_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> idle_;
};

/// Makes a device the thread's current one, and then the one before it again: unless the process
/// does not use that one, since going back would make a context there, with memory of its own. A
/// thread of the library's own sets its device once (use_device()), and a scope costs it nothing.
///
/// Around everything but the choice of a device: what asks or ends an event or a stream, too, makes
/// a context on the thread's current device if there is none.
class DeviceScope {
 public:
  DeviceScope(const CudaApi& cuda, int device);
  /// For what ends something: whatever is wrong with the device.
  DeviceScope(const CudaApi& cuda, int device, std::nothrow_t) noexcept;
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  const CudaApi& cuda_;
  int before_ = 0;
  bool back_ = false;
};
inline void use_device(const CudaApi& cuda, int device) noexcept {
  (void)cuda.set_device(device);  // What is wrong with it the next call says.
}

/// Lets the thread ask about events, make streams and the like while other threads capture in
/// a mode that would prohibit it. For what touches nothing that is captured. In a DeviceScope.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const CudaApi& cuda) noexcept : cuda_(cuda) { swap(); }
  ~RelaxedCapture() { swap(); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  /// It fails only for a mode that there is not.
  void swap() noexcept { (void)cuda_.thread_exchange_stream_capture_mode(&mode_); }

  const CudaApi& cuda_;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

/// True when work on the stream goes into a graph. @throws Error when that has failed already, or
/// when the stream must not be asked: the default one, while another one is captured.
bool is_capturing(const CudaApi& cuda, int device, cudaStream_t stream);
inline bool is_capturing(const Gpu& gpu, cudaStream_t stream) {
  return is_capturing(gpu.cuda(), gpu.index(), stream);
}

/// A stream that does not wait for the default one.
class CudaStream {
 public:
  explicit CudaStream(std::shared_ptr<Gpu> gpu);
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
