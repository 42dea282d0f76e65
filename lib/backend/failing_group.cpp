#include "backend/failing_group.hpp"

#include <chrono>

namespace tutti::internal {

using namespace std::chrono_literals;

Error FailingGroup::fail(const Failure& failure) noexcept {
  if (!up_.exchange(false)) {  // Sequentially consistent: of several threads one goes on.
    if (!failure.status.call.empty()) agreement_.publish_status(failure.status);
    std::unique_lock lock(mutex_);
    settled_.wait(lock, [&] { return cause_.has_value(); });
    return *cause_;
  }
  // Before the transport stops, so that a peer that notices it finds the cause in the store.
  const bool first = agreement_.announce(failure);
  stop(failure.cause);
  const Error cause = agreement_.settle(failure, first);
  {
    const std::lock_guard lock(mutex_);
    cause_ = cause;
  }
  settled_.notify_all();
  failed(cause);
  return cause;
}

Error FailingGroup::await_failure(const Failure& failure) noexcept {
  const auto limit = Deadline::after(2s);
  while (!limit.expired()) {
    if (const auto found = agreement_.cause(failure.status)) return fail({.cause = *found});
    std::unique_lock lock(mutex_);
    if (settled_.wait_for(lock, 5ms, [&] { return cause_.has_value(); })) return *cause_;
  }
  return fail(failure);
}

std::optional<Error> FailingGroup::cause() const {
  const std::lock_guard lock(mutex_);
  return cause_;
}

}  // namespace tutti::internal
