#include "failure.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "backend/record.hpp"
#include "values/group_errors.hpp"
#include "work.hpp"

namespace tutti::backend::nccl {

std::chrono::nanoseconds first_look(int size) {
  constexpr std::chrono::nanoseconds per_rank = std::chrono::microseconds(2500);
  return std::clamp<std::chrono::nanoseconds>(size * per_rank, 8 * per_rank, rarest_look);
}

std::chrono::nanoseconds between_looks(std::chrono::nanoseconds age, int size) {
  return std::clamp<std::chrono::nanoseconds>(age / 4, first_look(size), rarest_look);
}

std::chrono::nanoseconds collecting_time(std::chrono::nanoseconds age, int size) {
  return between_looks(age, size) + 3 * first_look(size);
}

void Failure::require_intact() const {
  if (is_broken()) throw internal::broken(*cause());
}

void Failure::fail(const Error& mine) noexcept {
  const bool has_rank = mine.where().rank >= 0;
  (void)fail({.cause = has_rank ? mine
                                : Error(mine.code(), mine.message(),
                                        {.group = init_.name, .rank = init_.rank})});
}

void Failure::fail_late(const Op& op, const Call& call, Clock::time_point since) noexcept {
  const bool pair = is_message(op, call);
  const auto text =
      pair ? fmt::format("the deadline passed; rank {} may not have made its side of {}", op.peer,
                         internal::describe({&op, 1}, call))
           : std::string("the deadline passed");
  const Error mine = internal::call_error(Errc::timeout, init_.name, {&op, 1}, call,
                                          pair ? op.peer : init_.rank, text);
  if (pair || init_.size == 1) return fail(mine);
  fail_late(mine, status_of(op, call), collecting_time(Clock::now() - since, init_.size));
}

void Failure::fail_late(const Error& mine, const internal::Status& status,
                        std::chrono::nanoseconds patience) noexcept {
  internal::Failure failure{.cause = mine, .status = status, .patience = patience};
  for (int r = 0; r < init_.size; ++r) failure.ask.push_back(r);
  (void)fail(failure);
}

void Failure::on_broken(const Error& cause) noexcept {
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
  {
    const std::lock_guard lock(mutex_);
    late = late_;
  }
  const Error cause = *this->cause();
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
  const Error cause = *this->cause();
  return {cause.code(), cause.message() + late_, cause.where()};
}

internal::Status Failure::status_of(const Op& op, const Call& call) const {
  // The messages of a lowered gather, scatter or all_to_all are one call on each rank.
  if (is_point_to_point(op.kind) && !is_message(op, call))
    return {fmt::format("the messages of call #{} on group '{}'", call.seq, init_.name), {}, {}};
  return {fmt::format("{} #{} on group '{}'", name_of(op.kind),
                      is_point_to_point(op.kind) ? op.seq : call.seq, init_.name),
          internal::Record::of({&op, 1}, call),
          is_point_to_point(op.kind) ? std::string() : init_.name};
}

std::uint64_t Failure::id_of(const Op& op, const Call& call) const noexcept {
  return is_message(op, call) ? internal::pair_id(init_.name, init_.rank, op)
                              : internal::call_id(init_.name, call.seq);
}

}  // namespace tutti::backend::nccl
