#include "group/host_state.hpp"

#include <utility>

namespace tutti::internal {

/// What then() adds: a job of the worker and the state of its own result.
class HostState::Continuation final : public HostState, public CallQueue::Job {
 public:
  Continuation(std::shared_ptr<CallQueue> queue, std::function<void()> next)
      : HostState(std::move(queue)), run_(std::move(next)) {}

  void run() noexcept override {
    std::exception_ptr thrown;
    try {
      run_();
    } catch (...) {
      thrown = std::current_exception();
    }
    run_ = nullptr;  // What it captured may own Works.
    finish(thrown);
  }
  void drop(const Error& why) noexcept override { finish(std::make_exception_ptr(why)); }

 private:
  std::function<void()> run_;
};

bool HostState::wait_until(Deadline deadline) {
  if (done() || forked()) return true;
  std::unique_lock lock(mutex_);
  const auto ended = [&] { return done_.load(std::memory_order_relaxed); };
  if (deadline.time() == Deadline::Clock::time_point::max()) {
    changed_.wait(lock, ended);
    return true;
  }
  return changed_.wait_until(lock, deadline.time(), ended);
}

std::exception_ptr HostState::error() const noexcept {
  if (!done())
    return forked() ? std::make_exception_ptr(Error(
                          Errc::forked, "the call was made before fork(); it cannot end here"))
                    : nullptr;
  const std::lock_guard lock(mutex_);
  return error_;
}

std::shared_ptr<WorkState> HostState::then(std::function<void()> next) {
  auto after = std::make_shared<Continuation>(queue_, std::move(next));
  std::exception_ptr error;
  {
    const std::lock_guard lock(mutex_);
    if (!done_) {
      next_.push_back(after);
      return after;
    }
    error = error_;
  }
  if (error)
    after->finish(error);
  else
    queue_->submit(after);
  return after;
}

void HostState::finish(const std::exception_ptr& error) noexcept {
  std::vector<std::shared_ptr<Continuation>> next;
  {
    const std::lock_guard lock(mutex_);
    if (done_) return;
    error_ = error;
    next.swap(next_);
    done_.store(true, std::memory_order_release);
    changed_.notify_all();
  }
  for (const auto& after : next) {
    if (error)
      after->finish(error);
    else
      queue_->submit(after);
  }
}

}  // namespace tutti::internal
