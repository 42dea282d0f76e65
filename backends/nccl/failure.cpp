#include "failure.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "backend/record.hpp"
#include "values/group_errors.hpp"
#include "work.hpp"

namespace tutti::backend::nccl {

std::chrono::nanoseconds between_looks(std::chrono::nanoseconds age) {
  return std::clamp<std::chrono::nanoseconds>(age / 4, first_look, rarest_look);
}

std::optional<Error> Failure::cause() const {
  const std::lock_guard lock(mutex_);
  return cause_;
}

void Failure::require_intact() const {
  if (broken_) throw internal::broken(*cause());
}

void Failure::fail(const Error& mine) noexcept {
  if (broken_) return;
  const bool has_rank = mine.where().rank >= 0;
  break_with(
      agreement_.report({.cause = has_rank ? mine
                                           : Error(mine.code(), mine.message(),
                                                   {.group = init_.name, .rank = init_.rank})}));
}

void Failure::fail_late(const Op& op, const Call& call, Clock::time_point since) noexcept {
  if (broken_) return;
  const bool pair = is_message(op, call);
  const auto text =
      pair ? fmt::format("the deadline passed; rank {} may not have made its side of {}", op.peer,
                         internal::describe({&op, 1}, call))
           : std::string("the deadline passed");
  const Error mine = internal::call_error(Errc::timeout, init_.name, {&op, 1}, call,
                                          pair ? op.peer : init_.rank, text);
  if (pair || init_.size == 1) return fail(mine);
  // The peers need this time to poll the store once.
  fail_late(mine, status_of(op, call), between_looks(Clock::now() - since) + 3 * first_look);
}

void Failure::fail_late(const Error& mine, const internal::Status& status,
                        std::chrono::nanoseconds patience) noexcept {
  if (broken_) return;
  internal::Failure failure{.cause = mine, .status = status, .patience = patience};
  for (int r = 0; r < init_.size; ++r) failure.ask.push_back(r);
  break_with(agreement_.report(failure));
}

bool Failure::poll_peers(const internal::Status& mine) noexcept {
  const auto cause = agreement_.cause(mine);
  if (cause) break_with(*cause);
  return cause.has_value();
}

void Failure::break_with(const Error& cause) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!cause_) cause_ = cause;
    broken_ = true;
  }
  if (on_break_) on_break_();
  order_->fail(internal::ended_by(cause));
}

void Failure::set_drained(std::string late) noexcept {
  {
    const std::lock_guard lock(mutex_);
    late_ = std::move(late);
    drained_ = true;
  }
  changed_.notify_all();
}

void Failure::await_drained() const noexcept {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return drained_; });
}

Error Failure::error_of(const Op& op, const Call& call) const noexcept {
  std::string late;
  Error cause(Errc::aborted, "");
  {
    const std::lock_guard lock(mutex_);
    cause = *cause_;
    late = late_;
  }
  const auto mine = internal::call_error(cause.code(), init_.name, {&op, 1}, call, -1, "");
  const Error shown = internal::ended_by(cause, mine.where());
  return late.empty() ? shown : Error(shown.code(), shown.message() + late, shown.where());
}

Error Failure::await_error_of(const Op& op, const Call& call) const noexcept {
  await_drained();
  return error_of(op, call);
}

Error Failure::await_cause() const noexcept {
  await_drained();
  const std::lock_guard lock(mutex_);
  return {cause_->code(), cause_->message() + late_, cause_->where()};
}

internal::Status Failure::status_of(const Op& op, const Call& call) const {
  // The messages of a lowered gather, scatter or all_to_all are one call on each rank.
  if (is_point_to_point(op.kind) && !is_message(op, call))
    return {fmt::format("the messages of call #{} on group '{}'", call.seq, init_.name), {}};
  return {fmt::format("{} #{} on group '{}'", name_of(op.kind),
                      is_point_to_point(op.kind) ? op.seq : call.seq, init_.name),
          internal::Record::of({&op, 1}, call)};
}

std::uint64_t Failure::id_of(const Op& op, const Call& call) const noexcept {
  return is_message(op, call) ? internal::pair_id(init_.name, init_.rank, op)
                              : internal::call_id(init_.name, call.seq);
}

}  // namespace tutti::backend::nccl
