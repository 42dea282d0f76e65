#include "torch/c10d_work.hpp"

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <thread>
#include <tuple>

#include <ATen/core/ivalue.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

#include <tutti/adapters/torch/detail/device.hpp>

#include "torch/errors.hpp"

namespace tutti::c10d_door {
namespace {

using namespace std::chrono_literals;

/// Threads that complete futures. Their callbacks may wait for another call of the group (PowerSGD
/// does), for which the group's own thread must stay free. There is always an idle thread for a
/// future that waits.
class Completer {
 public:
  /// @throws if there is no such thread; then `complete` is not called.
  void run(std::function<void()> complete) {
    const std::lock_guard lock(mutex_);
    if (idle_ < queue_.size() + 1) {
      std::thread([this] { serve(); }).detach();
      ++idle_;
    }
    queue_.push_back(std::move(complete));
    waiting_.notify_one();
  }

  void drain(std::chrono::steady_clock::time_point limit) {
    std::unique_lock lock(mutex_);
    ended_.wait_until(lock, limit, [&] { return queue_.empty() && busy_ == 0; });
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      waiting_.wait(lock, [&] { return !queue_.empty(); });
      auto complete = std::move(queue_.front());
      queue_.pop_front();
      --idle_;
      ++busy_;
      lock.unlock();
      complete();
      complete = nullptr;
      lock.lock();
      ++idle_;
      --busy_;
      ended_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable waiting_;
  std::condition_variable ended_;
  std::deque<std::function<void()>> queue_;
  std::size_t idle_ = 0;
  std::size_t busy_ = 0;
};

auto* completer = new Completer;  // Never destroyed: a thread may use it to the end.
std::atomic<int> uses_of_python = 0;
std::atomic<bool> python_has_ended = false;

// A forked process has none of the threads that complete futures or use Python.
[[maybe_unused]] const int at_fork = pthread_atfork(nullptr, nullptr, [] {
  completer = new Completer;
  uses_of_python = 0;
});

/// Held by code that may run Python's on any thread; end_with_python() waits for it. False once
/// Python has ended: it then ends a thread that takes its lock, and the unwinding of that thread's
/// stack would end the process.
class PythonUse {
 public:
  PythonUse() { ++uses_of_python; }
  PythonUse(const PythonUse&) = delete;
  PythonUse& operator=(const PythonUse&) = delete;
  ~PythonUse() { --uses_of_python; }
  explicit operator bool() const { return !python_has_ended; }
};

/// Frees objects that may own some of Python's. Once Python has ended they are leaked.
template <typename... T>
void release_held(T&... held) {
  const PythonUse use;
  auto taken = std::make_tuple(std::move(held)...);
  if (!use) static_cast<void>(new auto(std::move(taken)));
}

/// A future and the tensors that complete it.
struct Completion {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  std::vector<Tensors> outputs;

  ~Completion() { release_held(future, outputs); }
};

void complete(c10::ivalue::Future& future, const std::vector<Tensors>& outputs,
              const std::exception_ptr& error) {
  if (error != nullptr)
    future.setErrorIfNeeded(error);
  else if (outputs.size() == 1)
    future.markCompleted(c10::IValue(outputs[0]));
  else
    future.markCompleted(c10::IValue(outputs));
}

/// Orders the current stream after a call, whose arrays are still needed.
c10::Stream order_stream(Call& call) {
  const auto stream = libtorch::detail::current_stream(call.device);
  if (!call.done && !call.work.done()) call.work.block_stream(libtorch::detail::stream_of(stream));
  if (!call.done && call.work.done()) call.finish();
  if (call.written) call.written->block(stream);
  return stream;
}

}  // namespace

void drain_futures() {
  completer->drain(std::chrono::steady_clock::now() + 10s);
}

void end_with_python() {
  const auto limit = std::chrono::steady_clock::now() + 10s;
  completer->drain(limit);
  python_has_ended = true;
  while (uses_of_python > 0 && std::chrono::steady_clock::now() < limit)
    std::this_thread::sleep_for(1ms);
}

Call::~Call() {
  release_held(outputs, future, arrays);
}

void Call::finish() {
  if (done) return;
  try {
    work.wait();
  } catch (const Error& failure) {
    error = as_torch(failure, group_description);
  }
  work = Work();
  done = true;
}

void Call::end_on_stream() {
  const auto stream = order_stream(*this);
  if (error != nullptr) return;
  arrays.copy_back();
  written.emplace(device.type());
  written->record(stream);
}

void Call::block_current_stream() {
  const auto stream = order_stream(*this);
  arrays.release(stream);
  for (const auto& list : outputs)
    for (const auto& tensor : list) record_stream(tensor, stream);
  is_ordered = true;
}

CallWork::~CallWork() {
  // Freed on this thread: on one of the group it could meet NCCL, which puts a later call on the
  // stream of the memory.
  if (call_->is_ordered) call_->outputs.clear();
  try {
    std::move(call_->work).detach(call_);
  } catch (const std::exception&) {  // Without a thread detach() has waited for the call.
  }
  note_end();
}

bool CallWork::isCompleted() {
  std::unique_lock lock(call_->mutex, std::try_to_lock);
  if (!lock) return false;  // Another thread waits.
  if (!call_->done && !call_->work.done()) return false;
  call_->finish();
  if (call_->written && !call_->written->query()) return false;
  lock.unlock();
  note_end();
  return true;
}

bool CallWork::isSuccess() const {
  const std::lock_guard lock(call_->mutex);
  return call_->done && call_->error == nullptr;
}

std::exception_ptr CallWork::exception() const {
  const std::lock_guard lock(call_->mutex);
  return call_->error;
}

bool CallWork::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(call_->mutex);
  if (timeout != kNoTimeout && !call_->done && !call_->work.wait_for(timeout))
    C10_THROW_ERROR(DistBackendError,
                    c10::str("tutti: Timed out after ", timeout.count(),
                             " ms in wait(); the call goes on until its own deadline"));
  // As with torch's NCCL, the host waits for a barrier.
  if (call_->device.is_cpu() || opType_ == ::c10d::OpType::BARRIER)
    call_->finish();
  else
    in_torch_errors(call_->group_description, [&] { call_->block_current_stream(); });
  lock.unlock();
  note_end();
  if (call_->error != nullptr) std::rethrow_exception(call_->error);
  return true;
}

void CallWork::blockCurrentStream() {
  if (call_->device.is_cpu()) return ::c10d::Work::blockCurrentStream();
  synchronize();
}

std::vector<at::Tensor> CallWork::result() {
  TORCH_CHECK(isCompleted(), "tutti: result() of a call that has not ended; wait() for it first");
  return call_->outputs.size() == 1 ? call_->outputs[0] : Tensors{};
}

c10::intrusive_ptr<c10::ivalue::Future> CallWork::getFuture() {
  const std::lock_guard lock(call_->mutex);
  if (call_->future != nullptr) return call_->future;
  const bool on_device = !call_->device.is_cpu();
  const auto tensors = c10::ListType::create(c10::TensorType::get());
  const auto future = c10::make_intrusive<c10::ivalue::Future>(
      call_->outputs.size() == 1 ? c10::TypePtr(tensors)
                                 : c10::TypePtr(c10::ListType::create(tensors)),
      on_device ? std::vector<c10::Device>{call_->device} : std::vector<c10::Device>{});
  call_->future = future;
  if (on_device && (call_->done || call_->in_stream_order)) {
    // Completed at once: users of the future wait for the stream that is current now.
    const auto stream = libtorch::detail::current_stream(call_->device);
    const c10::StreamGuard guard(libtorch::detail::beside(stream));
    in_torch_errors(call_->group_description, [&] { call_->block_current_stream(); });
    complete(*future, call_->outputs, call_->error);
    return future;
  }
  if (call_->done) {
    complete(*future, call_->outputs, call_->error);
    return future;
  }
  const std::shared_ptr<Completion> end(new Completion{future, call_->outputs});
  const auto on_done = [end, group = call_->group_description](const Error* failure) {
    const PythonUse use;
    if (!use) return;
    auto error = failure == nullptr ? std::exception_ptr() : as_torch(*failure, group);
    try {
      completer->run([end, error] {
        const PythonUse use;
        if (use) complete(*end->future, end->outputs, error);
      });
    } catch (const std::exception& no_thread) {
      // Its callbacks run here, where they may not wait. value() of a future with an error throws.
      if (error == nullptr)
        error = as_torch({Errc::resource_exhausted,
                          std::string("no thread completes the future: ") + no_thread.what()});
      complete(*end->future, end->outputs, error);
    }
  };
  in_torch_errors(call_->group_description, [&] { call_->work.on_done(on_done); });
  return future;
}

void CallWork::note_end() {
  const std::lock_guard lock(mutex_);
  completed_ = true;
  if (recordFunctionEndCallback_ != nullptr) std::exchange(recordFunctionEndCallback_, nullptr)();
}

}  // namespace tutti::c10d_door
