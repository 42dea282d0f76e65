#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/Event.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <tutti/work.hpp>

#include "torch/arrays.hpp"
#include "torch/versions.hpp"

namespace [[gnu::visibility("default")]] tutti {
namespace c10d_door {

/// One call: its tensors, and how it ended. The call holds it until it has ended.
struct Call {
  Call(const c10::Device& on, std::string group)
      : device(on), group_description(std::move(group)), arrays(on) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call();

  const c10::Device device;
  const std::string group_description;  // Torch's.
  /// A stream of the device can wait for the call; otherwise Work::block_stream() blocks the host.
  bool in_stream_order = false;
  std::mutex mutex;  // Of all members but `arrays` and `source`, which the call writes.
  Work work;
  bool done = false;
  std::exception_ptr error;
  std::vector<Tensors> outputs;
  c10::intrusive_ptr<c10::ivalue::Future> future;
  Arrays arrays;
  int source = -1;                    // The sender, of a receive.
  bool is_ordered = false;            // A stream has waited for it.
  std::optional<c10::Event> written;  // After it the outputs have been written, on a device.

  /// Waits for the call. With the mutex.
  void finish();
  /// The rest of a call on a device is put on the current stream, which waits for the call, and
  /// `written` behind it.
  void end_on_stream();
  /// The current stream of the device waits for the call, which then needs to hold no tensor. An
  /// error that is known ends it. With the mutex.
  void block_current_stream();
};

/// c10d's handle of a call. Dropped before the call ends, it waits for nothing.
class CallWork final : public ::c10d::Work {
 public:
  CallWork(int rank, ::c10d::OpType type, const char* title, const Tensors& inputs,
           std::shared_ptr<Call> call, std::uint64_t seq, std::chrono::milliseconds timeout)
      : ::c10d::Work(rank, type, title, inputs),
        call_(std::move(call)),
        seq_(seq),
        call_timeout_(timeout) {}
  ~CallWork() override;

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override { return call_->source; }
  std::vector<at::Tensor> result() override;
  void synchronize() override { wait(kNoTimeout); }
  void blockCurrentStream() override;
  /// On a device the current stream waits, and the host only for a barrier, if `timeout` is set, or
  /// if the call runs on the host.
  bool wait(std::chrono::milliseconds timeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  std::uint64_t getSequencenumber() const override { return seq_; }
  std::chrono::milliseconds getTimeout() const TUTTI_OVERRIDE_FROM_TORCH_2_14 {
    return call_timeout_;
  }

 private:
  void note_end();  // Tells torch's profiler.

  std::shared_ptr<Call> call_;
  std::uint64_t seq_;
  std::chrono::milliseconds call_timeout_;
};

/// Waits until the callbacks of all futures that have ended are done, for 10 s at most.
void drain_futures();

/// Call it before Python ends, without its lock: drains the futures. Calls that end later complete
/// no future, whose callbacks may be Python's, and leak their tensors, which may own objects of
/// Python. Waits 10 s at most for other threads that use Python.
void end_with_python();

}  // namespace c10d_door
}  // namespace tutti
