#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <tutti/work.hpp>

#include "torch/arrays.hpp"

namespace [[gnu::visibility("default")]] tutti {
namespace c10d_door {

/// One call: its tensors, and how it ended. The call holds it until it has ended.
struct Call {
  std::mutex mutex;  // Of all members but `arrays` and `source`, which the call writes.
  Work work;
  bool done = false;
  std::exception_ptr error;
  std::vector<Tensors> outputs;
  c10::intrusive_ptr<c10::ivalue::Future> future;
  Arrays arrays;
  int source = -1;  // The sender, of a receive.

  /// Waits for the call. With the mutex.
  void finish();
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
  bool wait(std::chrono::milliseconds timeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  std::uint64_t getSequencenumber() const override { return seq_; }
  std::chrono::milliseconds getTimeout() const override { return call_timeout_; }

 private:
  void note_end();  // Tells torch's profiler.

  std::shared_ptr<Call> call_;
  std::uint64_t seq_;
  std::chrono::milliseconds call_timeout_;
};

/// Waits until the callbacks of all futures that have ended are done, for 10 s at most: call it
/// before Python ends, without its lock.
void drain_futures();

}  // namespace c10d_door
}  // namespace tutti
