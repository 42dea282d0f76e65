#include "backend/call_queue.hpp"

#include <algorithm>
#include <iterator>
#include <system_error>
#include <utility>

#include "values/current_error.hpp"
#include "values/fail.hpp"
#include "values/group_errors.hpp"

namespace tutti::internal {
namespace {

thread_local const CallQueue* continuation_of = nullptr;

}  // namespace

CallQueue::CallQueue() {
  (void)group_destroyed();  // Allocates the error here, because stop() must not.
}

bool CallQueue::in_continuation() const noexcept {
  // Relaxed: a continuation runs on the worker, which has taken the lock under which this was set.
  // Without a worker this avoids the lookup of a thread-local variable in a shared library.
  return running_.load(std::memory_order_relaxed) && continuation_of == this;
}

Deadline CallQueue::enter_slow(const Call& call) {
  const auto limit = call.limit();
  std::unique_lock lock(mutex_);
  if (error_) throw broken(*error_);
  ++attention_;
  const auto mine = [&] { return error_.has_value() || turn_.load() == call.seq; };
  bool in_time = true;
  if (limit.is_none())
    moved_.wait(lock, mine);
  else
    in_time = moved_.wait_until(lock, limit.time(), mine);
  --attention_;
  if (error_) throw Error(*error_);
  if (!in_time)
    failf(Errc::timeout,
          "call #{} reached its deadline while it waited for call #{} of this rank to end",
          call.seq, turn_.load());
  return limit;
}

void CallQueue::advance() noexcept {
  {
    const std::lock_guard lock(mutex_);
    while (skipped_.erase(turn_.load()) != 0) {
      --attention_;
      ++turn_;
    }
  }
  moved_.notify_all();
}

void CallQueue::skip(std::uint64_t seq) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (seq == turn_.load())
      turn_ = seq + 1;
    else if (skipped_.insert(seq).second)
      ++attention_;
  } catch (...) {  // Later calls would wait for this number.
    return fail(to_error(std::current_exception()));
  }
  advance();
}

void CallQueue::skip_to(std::uint64_t seq) noexcept {
  {
    const std::lock_guard lock(mutex_);
    turn_ = seq;
    const auto end = skipped_.lower_bound(seq);
    attention_ -= static_cast<std::uint64_t>(std::distance(skipped_.begin(), end));
    skipped_.erase(skipped_.begin(), end);
  }
  if (attention_.load() != 0) advance();
}

void CallQueue::start_worker() {
  if (running_) return;
  // The thread holds a reference, because it may outlive the queue's owner.
  try {
    worker_ = std::thread([self = shared_from_this()] { self->work(); });
  } catch (const std::system_error& error) {
    failf(Errc::resource_exhausted, "cannot start the group's worker thread: {}", error.what());
  }
  running_ = true;
}

void CallQueue::submit(std::uint64_t seq, std::shared_ptr<Job> job) {
  {
    const std::lock_guard lock(mutex_);
    if (error_) throw broken(*error_);
    if (stop_) throw Error(group_destroyed());
    start_worker();
    const auto position = std::ranges::find_if(numbered_.rbegin(), numbered_.rend(),
                                               [&](const auto& n) { return n.seq < seq; });
    numbered_.insert(position.base(), {seq, std::move(job)});
    ++attention_;
  }
  moved_.notify_all();
}

void CallQueue::start() {
  const std::lock_guard lock(mutex_);
  if (!stop_) start_worker();
}

void CallQueue::submit_at(Deadline moment, std::shared_ptr<Job> job) {
  {
    const std::lock_guard lock(mutex_);
    if (stop_) return;
    start_worker();
    if (timed_.size() >= most_timed_) {
      std::erase_if(timed_, [](const auto& timed) { return timed.job->is_over(); });
      most_timed_ = std::max<std::size_t>(64, 2 * timed_.size());
    }
    const auto position = std::ranges::find_if(
        timed_.rbegin(), timed_.rend(), [&](const auto& t) { return t.moment <= moment.time(); });
    timed_.insert(position.base(), {moment.time(), std::move(job)});
  }
  moved_.notify_all();
}

void CallQueue::take_due() {
  if (timed_.empty()) return;
  const auto now = Deadline::Clock::now();
  const auto end = std::ranges::find_if(timed_, [&](const auto& t) { return t.moment > now; });
  for (auto due = timed_.begin(); due != end; ++due) soon_.push_back(std::move(due->job));
  timed_.erase(timed_.begin(), end);
}

void CallQueue::submit(std::shared_ptr<Job> job) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (stop_) throw Error(group_destroyed());
    start_worker();
    soon_.push_back(job);
  } catch (...) {
    return job->drop(to_error(std::current_exception()));
  }
  moved_.notify_all();
}

void CallQueue::fail(const Error& why) noexcept {
  std::vector<Numbered> dropped;
  std::function<void(const Error& why)> listener;
  {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = why;
    listener.swap(listener_);
    broken_ = true;
    dropped.swap(numbered_);
    attention_ -= dropped.size();
  }
  moved_.notify_all();
  for (const auto& entry : dropped) entry.job->drop(why);
  if (listener) listener(why);
}

void CallQueue::on_failure(std::function<void(const Error& why)> listener) {
  std::optional<Error> failed;
  {
    const std::lock_guard lock(mutex_);
    failed = error_;
    if (!failed) listener_.swap(listener);
  }
  if (failed) listener(*failed);
}

void CallQueue::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    listener_ = nullptr;
  }
  fail(group_destroyed());
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  moved_.notify_all();
  if (!worker_.joinable()) return;
  if (worker_.get_id() == std::this_thread::get_id())
    worker_.detach();  // A continuation destroyed the last reference.
  else
    worker_.join();
}

void CallQueue::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto ready = [&] { return !numbered_.empty() && numbered_.front().seq == turn_.load(); };
    for (take_due(); !stop_ && soon_.empty() && !ready(); take_due()) {
      if (timed_.empty()) {
        moved_.wait(lock);
      } else {
        const auto moment = timed_.front().moment;  // A copy: timed_ may grow during the wait.
        moved_.wait_until(lock, moment);
      }
    }
    std::shared_ptr<Job> job;
    const bool continuation = !soon_.empty();
    if (continuation) {
      job = std::move(soon_.front());
      soon_.erase(soon_.begin());
    } else if (stop_) {
      return;
    } else {
      job = std::move(numbered_.front().job);
      numbered_.erase(numbered_.begin());
      --attention_;
    }
    lock.unlock();
    continuation_of = continuation ? this : nullptr;
    job->run();
    job.reset();
    continuation_of = nullptr;
    lock.lock();
  }
}

}  // namespace tutti::internal
