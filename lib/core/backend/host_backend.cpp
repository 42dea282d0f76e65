#include <tutti/backend/host_backend.hpp>

#include <algorithm>
#include <memory_resource>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/host_calls.hpp"
#include "backend/record.hpp"
#include "backend/row_lists.hpp"
#include "kernels/reduce.hpp"
#include "values/current_error.hpp"
#include "values/fail.hpp"
#include "values/group_errors.hpp"

namespace tutti {

std::exception_ptr HostBackend::Posts::wait() noexcept {
  std::exception_ptr first;
  for (const auto& state : states_) {
    state->wait_until(Deadline::none());
    if (first == nullptr) first = state->error();
  }
  return first;
}

std::shared_ptr<WorkState> HostBackend::Posts::all() const {
  if (states_.size() == 1) return states_.front();
  std::vector<Work> works;
  works.reserve(states_.size());
  for (const auto& state : states_) works.emplace_back(state);
  return std::move(Work::all(works)).release();
}

}  // namespace tutti

namespace [[gnu::visibility("default")]] tutti {

namespace {

Call without_name(Call call) noexcept {
  call.name = {};
  return call;
}

/// with_location() of a group by its name, or `error` if there is no memory for it.
Error located(const Error& error, const std::string& group, std::span<const Op> ops,
              const Call& call, int rank) noexcept try {
  return internal::with_location(error, group, ops, call, rank);
} catch (...) {
  return error;
}

}  // namespace

/// An async call: copies of the caller's operations and rows, and the state of its Work.
class HostBackend::Task final : public internal::HostState, public internal::CallQueue::Job {
 public:
  Task(std::shared_ptr<internal::CallQueue> queue, HostBackend& backend, std::span<const Op> ops,
       const Call& call, std::shared_ptr<WorkState> posted)
      : internal::HostState(std::move(queue)),
        backend_(backend),
        ops_(ops.begin(), ops.end(), &backend.calls().pool()),
        rows_(&backend.calls().pool()),
        name_(call.name, &backend.calls().pool()),
        call_(call),
        posted_(std::move(posted)) {
    internal::reserve_row_lists(ops_, rows_);
    for (auto& op : ops_) internal::copy_row_lists(op, rows_);
    call_.name = name_;
    call_.deadline = call.limit();  // The timeout counts from here, not from the call's turn.
    call_.blocking = true;
  }

  void run() noexcept override {
    std::exception_ptr thrown;
    try {
      backend_.run_in_turn(ops_, call_);
    } catch (...) {
      const Error error = internal::to_error(std::current_exception());
      thrown = std::make_exception_ptr(placed(error));
      if (internal::breaks_group(error.code())) backend_.abort(error.message());
    }
    if (posted_ != nullptr) {
      posted_->wait_until(Deadline::none());
      if (!thrown) thrown = posted_->error();
    }
    finish(thrown);
  }
  void drop(const Error& why) noexcept override { finish(std::make_exception_ptr(placed(why))); }

 private:
  Error placed(const Error& error) const noexcept {
    return located(error, backend_.group_, ops_, call_, backend_.shown_rank_);
  }

  HostBackend& backend_;
  std::pmr::vector<Op> ops_;
  std::pmr::vector<std::int64_t> rows_;
  std::pmr::string name_;
  Call call_;
  std::shared_ptr<WorkState> posted_;
};

HostBackend::HostBackend(std::string group, int rank, int shown_rank)
    : group_(std::move(group)),
      rank_(rank),
      shown_rank_(shown_rank),
      calls_(std::make_unique<Calls>()) {}

HostBackend::~HostBackend() {
  stop();
}

void HostBackend::post(std::span<const Op> ops, const Call& call, Posts& posted) {
  const auto limit = call.limit();
  posted.reserve(ops.size());  // So that adding one cannot fail.
  for (const auto& op : ops)
    if (is_point_to_point(op.kind))
      if (auto state = post_one(op, call, limit)) posted.add(std::move(state));
}

std::shared_ptr<WorkState> HostBackend::post_one(const Op& op, const Call&, Deadline) {
  internal::failf(Errc::unsupported,
                  "this backend does not implement post_one() for {}: override it, or make "
                  "supports() return false",
                  name_of(op.kind));
}

HostBackend::Posted HostBackend::make_message(const Op& op, const Call& call) {
  auto state = calls_->make_state<internal::HostState>();
  return {state, [state, op, call = without_name(call), group = group_,
                  rank = shown_rank_](const Error* error) {
            state->finish(error == nullptr ? nullptr
                                           : std::make_exception_ptr(
                                                 located(*error, group, {&op, 1}, call, rank)));
          }};
}

void HostBackend::fail_queued(const Error& why) noexcept {
  calls_->queue()->fail(why);
}

void HostBackend::stop() noexcept {
  calls_->queue()->stop();
}

void HostBackend::run_in_turn(std::span<const Op> ops, const Call& call) {
  std::optional<internal::CallQueue::Turn> turn;
  try {
    turn.emplace(*calls_->queue(), call);
  } catch (const Error& error) {
    // The missing call leaves a gap in the order, which later calls cannot keep.
    if (error.code() == Errc::timeout) abort(error.what());
    throw;
  }
  if (!turn->limit().is_set()) return run_now(ops, call);
  Call rest = call;  // The timeout counts from the beginning of the wait for the turn.
  rest.deadline = turn->limit();
  run_now(ops, rest);
}

void HostBackend::run_now(std::span<const Op> ops, const Call& call) {
  if (!call.in_order) return run(ops, call);
  Posts posted(calls_->pool());
  try {
    post(ops, call, posted);
  } catch (...) {
    const Error why = internal::to_error(std::current_exception());
    if (!posted.empty())
      abandon(posted, why);
    else if (why.code() == Errc::resource_exhausted)
      publish(ops, call, why);  // Not refuse(): the number must not be skipped.
    throw;
  }
  try {
    if (internal::has_collective(ops)) run(ops, call);
  } catch (...) {
    (void)posted.wait();
    throw;
  }
  if (const auto error = posted.wait()) std::rethrow_exception(error);
}

void HostBackend::abandon(Posts& posted, const Error& why) noexcept {
  abort(why.message());
  (void)posted.wait();
}

bool HostBackend::supports(Operation operation, DType dtype, ReduceOp::Kind kind) const noexcept {
  if (operation == Operation::recv_any) return false;
  if (kind == ReduceOp::Kind::custom) return true;
  switch (operation) {
    case Operation::all_reduce:
    case Operation::reduce:
    case Operation::reduce_scatter:
      return internal::can_reduce(dtype, kind);
    case Operation::scan:
    case Operation::exclusive_scan:
      return internal::can_reduce(dtype, kind) && kind != ReduceOp::Kind::avg;
    default:
      return true;
  }
}

Work HostBackend::launch(std::span<const Op> ops, const Call& call) {
  if (call.blocking && calls_->queue()->in_continuation()) {
    const Error why(
        Errc::invalid_argument,
        "a blocking verb inside then() or on_done() would wait for itself; use its async form");
    refuse(ops, call, why);
    throw Error(why);
  }
  if (call.in_order && !call.blocking) return submit(ops, call, nullptr);
  if (call.in_order || (ops.size() == 1 && call.blocking && !is_point_to_point(ops[0].kind))) {
    run_in_turn(ops, call);
    return {};
  }
  Posts posted(calls_->pool());
  try {
    if (std::ranges::any_of(ops, [](const Op& op) { return is_point_to_point(op.kind); }))
      post(ops, call, posted);
  } catch (...) {
    const Error why = internal::to_error(std::current_exception());
    if (posted.empty())
      refuse(ops, call, why);
    else
      abandon(posted, why);
    throw;
  }
  try {
    if (!internal::has_collective(ops)) {
      if (!call.blocking) return Work(posted.all());
    } else if (call.blocking) {
      run_in_turn(ops, call);
    } else {
      return submit(ops, call, posted.all());
    }
  } catch (...) {
    // The caller must not get the error while a transport may still access its buffers.
    const Error why = internal::to_error(std::current_exception());
    if (why.code() == Errc::resource_exhausted)
      abandon(posted, why);
    else
      (void)posted.wait();
    throw;
  }
  if (const auto error = posted.wait()) std::rethrow_exception(error);
  return {};
}

Work HostBackend::submit(std::span<const Op> ops, const Call& call,
                         const std::shared_ptr<WorkState>& posted) {
  const auto give_up = [&](const Error& why) {
    posted == nullptr ? refuse(ops, call, why) : abort(why.message());
  };
  try {
    auto task = calls_->make_state<Task>(*this, ops, call, posted);
    calls_->queue()->submit(call.seq, task);
    return Work(std::move(task));
  } catch (...) {
    const Error error = internal::to_error(std::current_exception());
    if (error.code() == Errc::resource_exhausted) give_up(error);
    throw Error(error);
  }
}

void HostBackend::refuse(std::span<const Op> ops, const Call& call, const Error& why) noexcept {
  publish(ops, call, why);
  if (call.in_order || internal::has_collective(ops)) calls_->queue()->skip(call.seq);
}

}  // namespace tutti
