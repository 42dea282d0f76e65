#include "backend/host_state.hpp"

#include <utility>

#include "values/current_error.hpp"

namespace tutti::internal {

/// A function of then() or on_done(): a job of the worker, and the state of the Work that ends
/// after it. The function's captures are destroyed on the worker.
class HostState::Continuation : public HostState, public CallQueue::Job {
 public:
  using HostState::HostState;
  /// Submits `after` to the worker once its call has ended with `error` (null: without an error).
  static void start(std::shared_ptr<Continuation> after, const std::exception_ptr& error) noexcept {
    after->before_ = error;
    auto& queue = *after->queue_;
    queue.submit(std::move(after));
  }

  /// Runs `after` on this thread.
  static void run_here(Continuation& after, const std::exception_ptr& error) noexcept {
    after.before_ = error;
    after.run();
  }

 protected:
  const std::exception_ptr& before() const noexcept { return before_; }

 private:
  std::exception_ptr before_;
};

/// The continuation of then().
class HostState::Next final : public Continuation {
 public:
  Next(std::shared_ptr<CallQueue> queue, std::function<void()> next)
      : Continuation(std::move(queue)), run_(std::move(next)) {}

  void run() noexcept override {
    std::exception_ptr thrown = before();
    if (thrown == nullptr) {
      try {
        run_();
      } catch (...) {
        thrown = std::current_exception();
      }
    }
    run_ = nullptr;  // Its captures may own Works.
    finish(thrown);
  }
  void drop(const Error& why) noexcept override {
    finish(before() != nullptr ? before() : std::make_exception_ptr(why));
  }

 private:
  std::function<void()> run_;
};

/// The callback of on_done().
class HostState::Callback final : public Continuation {
 public:
  Callback(std::shared_ptr<CallQueue> queue, std::shared_ptr<HostState> call,
           std::function<void(const Error*)> f)
      : Continuation(std::move(queue)), call_(std::move(call)), f_(std::move(f)) {}

  void run() noexcept override {
    if (before() == nullptr) {
      f_(nullptr);
    } else {
      const Error error = to_error(before());
      f_(&error);
    }
    f_ = nullptr;
    {
      const std::lock_guard lock(call_mutex_);
      call_.reset();
    }
    finish(before());
  }
  /// Runs all the same: on_done() calls its function even if there is no worker.
  void drop(const Error&) noexcept override { run(); }

  void block_stream(Stream stream) override {
    if (const auto call = this->call()) call->block_stream(stream);
  }
  bool withdraw(const Error& why) noexcept override {
    const auto call = this->call();
    return call == nullptr || call->withdraw(why);
  }

 private:
  std::shared_ptr<HostState> call() const {
    const std::lock_guard lock(call_mutex_);
    return call_;
  }

  mutable std::mutex call_mutex_;
  std::shared_ptr<HostState> call_;  // Null after f_ has run.
  std::function<void(const Error*)> f_;
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
    return forked() ? std::make_exception_ptr(described(
                          Errc::forked,
                          [] {
                            return Error(Errc::forked,
                                         "the call was made before fork(); it can end only in the "
                                         "parent process");
                          }))
                    : nullptr;
  const std::lock_guard lock(mutex_);
  return error_;
}

bool HostState::attach(const std::shared_ptr<Continuation>& after, std::exception_ptr& error) {
  const std::lock_guard lock(mutex_);
  if (!done_) {
    next_.push_back(after);
    return true;
  }
  error = error_;
  return false;
}

std::shared_ptr<WorkState> HostState::then(std::function<void()> next) {
  auto after = std::make_shared<Next>(queue_, std::move(next));
  std::exception_ptr error;
  if (attach(after, error)) return after;
  if (error)
    after->finish(error);
  else
    Continuation::start(after, nullptr);
  return after;
}

std::shared_ptr<WorkState> HostState::on_done(std::function<void(const Error*)> f) {
  auto after = std::make_shared<Callback>(queue_, shared_from_this(), std::move(f));
  if (forked()) {  // There is no worker, and the call will never end.
    Continuation::run_here(*after, error());
    return after;
  }
  queue_->start();  // Throws here if the thread cannot start.
  std::exception_ptr error;
  if (!attach(after, error)) Continuation::start(after, error);
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
  // Even after an error continuations run on the worker: this may be a transport's thread, which
  // must not destroy their captures.
  for (auto& after : next) Continuation::start(std::move(after), error);
}

}  // namespace tutti::internal
