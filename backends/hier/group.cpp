#include "group.hpp"

#include <utility>

#include "backend/record.hpp"
#include "values/group_errors.hpp"

namespace tutti::backend::hier {

void Group::on_failure(std::function<void(const Error&)> stop,
                       std::function<void(const Error&)> ended) {
  const std::lock_guard lock(hooks_mutex_);
  stop_ = std::move(stop);
  ended_ = std::move(ended);
}

void Group::part_failed(const Error& why) noexcept {
  // A group that is failing has ended this part.
  if (why.code() == Errc::peer_lost && is_up()) (void)fail({.cause = why});
}

void Group::leave() noexcept {
  {
    const std::lock_guard lock(hooks_mutex_);
    stop_ = nullptr;
    ended_ = nullptr;
  }
  if (size_ > 1) agreement().leave(0);
}

Error Group::error_of_message(const Error& error, const Op& op) noexcept {
  if (!internal::breaks_group(error.code())) return error;
  const auto cause =
      error.code() == Errc::aborted ? await_failure({.cause = error}) : fail({.cause = error});
  // A part ends its messages with the error of a lost rank, which has no place.
  return internal::ended_by(cause,
                            internal::with_location(error, name_, {&op, 1}, {}, rank_).where());
}

void Group::stop(const Error& why) noexcept {
  const std::lock_guard lock(hooks_mutex_);
  if (stop_) stop_(why);
}

void Group::on_broken(const Error& cause) noexcept {
  const std::lock_guard lock(hooks_mutex_);
  if (ended_) ended_(cause);
}

}  // namespace tutti::backend::hier
