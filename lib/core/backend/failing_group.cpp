#include "backend/failing_group.hpp"

#include <chrono>

namespace tutti::internal {

using namespace std::chrono_literals;

Error FailingGroup::fail(const Failure& failure) noexcept {
  if (auto up = State::up; !state_.compare_exchange_strong(up, State::failing)) {
    std::unique_lock lock(mutex_);
    settled_.wait(lock, [&] { return is_announced_ || cause_.has_value(); });
    // announce() has found out whether the store answers.
    if (!cause_ && !failure.status.call.empty() && !agreement_.is_silent()) {
      lock.unlock();
      agreement_.publish_status(failure.status);
      lock.lock();
    }
    settled_.wait(lock, [&] { return cause_.has_value(); });
    return *cause_;
  }
  // Before the transport stops, so that a peer that notices it finds the cause in the store.
  const bool first = agreement_.announce(failure);
  {
    const std::lock_guard lock(mutex_);
    is_announced_ = true;
  }
  settled_.notify_all();
  stop(failure.cause);
  const Error cause = agreement_.settle(failure, first);
  {
    const std::lock_guard lock(mutex_);
    cause_ = cause;
    state_ = State::broken;
  }
  settled_.notify_all();
  on_broken(cause);
  return cause;
}

Error FailingGroup::await_failure(const Failure& failure) noexcept {
  const auto limit = Deadline::after(2s);
  while (!limit.expired() && !agreement_.is_silent()) {
    {
      std::unique_lock lock(mutex_);
      if (settled_.wait_for(lock, 5ms, [&] { return cause_.has_value(); })) return *cause_;
    }
    if (poll_peers(failure.status)) break;
  }
  return fail(failure);
}

bool FailingGroup::poll_peers(const Status& mine) noexcept {
  const auto found = agreement_.cause(mine);
  if (found) (void)fail({.cause = *found});
  return found.has_value();
}

std::optional<Error> FailingGroup::cause() const {
  const std::lock_guard lock(mutex_);
  return cause_;
}

}  // namespace tutti::internal
