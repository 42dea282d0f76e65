#include "group/host_backend.hpp"

#include <algorithm>
#include <memory_resource>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "group/record.hpp"
#include "group/row_lists.hpp"
#include "kernels/reduce.hpp"
#include "values/current_error.hpp"
#include "values/group_errors.hpp"

namespace tutti::internal {
namespace {

void wait_and_throw(WorkState& state) {
  state.wait_until(Deadline::none());  // The call's deadline bounds it, see post().
  if (const auto error = state.error()) std::rethrow_exception(error);
}

}  // namespace

/// An async call: copies of the caller's operations and rows, and the state of its Work.
class HostBackend::Task final : public HostState, public CallQueue::Job {
 public:
  Task(std::shared_ptr<CallQueue> queue, HostBackend& backend, std::span<const Op> ops,
       const Call& call, std::shared_ptr<WorkState> posted)
      : HostState(std::move(queue)),
        backend_(backend),
        ops_(ops.begin(), ops.end(), &backend.pool()),
        rows_(&backend.pool()),
        name_(call.name, &backend.pool()),
        call_(call),
        posted_(std::move(posted)) {
    reserve_row_lists(ops_, rows_);
    for (auto& op : ops_) copy_row_lists(op, rows_);
    call_.name = name_;
    call_.deadline = call.limit();  // The timeout counts from here, not from the call's turn.
    call_.blocking = true;
  }

  void run() noexcept override {
    std::exception_ptr thrown;
    try {
      backend_.run_in_turn(ops_, call_);
    } catch (...) {
      const Error error = to_error(std::current_exception());
      thrown = std::make_exception_ptr(placed(error));
      if (breaks_group(error.code())) backend_.abort(error.message());
    }
    if (posted_ != nullptr) {
      posted_->wait_until(Deadline::none());
      if (!thrown) thrown = posted_->error();
    }
    finish(thrown);
  }
  void drop(const Error& why) noexcept override { finish(std::make_exception_ptr(placed(why))); }

 private:
  Error placed(const Error& error) const {
    return with_location(error, backend_.group_, ops_, call_, backend_.rank_);
  }

  HostBackend& backend_;
  std::pmr::vector<Op> ops_;
  std::pmr::vector<std::int64_t> rows_;
  std::pmr::string name_;
  Call call_;
  std::shared_ptr<WorkState> posted_;
};

HostBackend::HostBackend(std::string group, int rank)
    : group_(std::move(group)),
      rank_(rank),
      pool_(std::make_shared<Pool>()),
      queue_(std::make_shared<CallQueue>()) {}

HostBackend::~HostBackend() {
  stop();
}

std::shared_ptr<WorkState> HostBackend::post(std::span<const Op> ops, const Call& call) {
  const auto limit = call.limit();
  std::shared_ptr<WorkState> first;
  std::vector<Work> states;  // Used for several operations only.
  for (const auto& op : ops) {
    if (!is_point_to_point(op.kind)) continue;
    auto state = post_one(op, call, limit);
    if (first == nullptr) {
      first = std::move(state);
      continue;
    }
    if (states.empty()) states.emplace_back(first);
    states.emplace_back(std::move(state));
  }
  return states.empty() ? first : std::move(Work::all(states)).release();
}

std::shared_ptr<WorkState> HostBackend::post_one(const Op&, const Call&, Deadline) {
  return nullptr;
}

void HostBackend::run_in_turn(std::span<const Op> ops, const Call& call) {
  std::optional<CallQueue::Turn> turn;
  try {
    turn.emplace(*queue_, call);
  } catch (const Error& error) {
    if (error.code() == Errc::timeout) abort(error.what());  // Later calls cannot keep the order.
    throw;
  }
  if (!turn->limit().is_set()) return run_now(ops, call);
  Call rest = call;  // The timeout counts from the wait for the turn.
  rest.deadline = turn->limit();
  run_now(ops, rest);
}

void HostBackend::run_now(std::span<const Op> ops, const Call& call) {
  if (!call.in_order) return run(ops, call);
  const auto posted = post(ops, call);
  try {
    if (has_collective(ops)) run(ops, call);
  } catch (...) {
    if (posted != nullptr) posted->wait_until(Deadline::none());
    throw;
  }
  if (posted != nullptr) wait_and_throw(*posted);
}

bool HostBackend::supports(Operation operation, DType dtype, ReduceOp::Kind kind) const noexcept {
  if (kind == ReduceOp::Kind::custom) return true;
  switch (operation) {
    case Operation::all_reduce:
    case Operation::reduce:
    case Operation::reduce_scatter:
      return can_reduce(dtype, kind);
    case Operation::scan:
    case Operation::exclusive_scan:
      return can_reduce(dtype, kind) && kind != ReduceOp::Kind::avg;
    default:
      return true;
  }
}

Work HostBackend::launch(std::span<const Op> ops, const Call& call) {
  if (call.blocking && queue_->in_continuation()) {
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
  std::shared_ptr<WorkState> posted;
  if (std::ranges::any_of(ops, [](const Op& op) { return is_point_to_point(op.kind); })) {
    try {
      posted = post(ops, call);
    } catch (...) {
      if (has_collective(ops)) refuse(ops, call, to_error(std::current_exception()));
      throw;
    }
  }
  try {
    if (!has_collective(ops)) {
      if (!call.blocking) return Work(std::move(posted));
    } else if (call.blocking) {
      run_in_turn(ops, call);
    } else {
      return submit(ops, call, posted);
    }
  } catch (...) {
    // The caller must not get the error while a transport may still touch its buffers.
    if (posted != nullptr) posted->wait_until(Deadline::none());
    throw;
  }
  if (posted != nullptr) wait_and_throw(*posted);
  return {};
}

Work HostBackend::submit(std::span<const Op> ops, const Call& call,
                         const std::shared_ptr<WorkState>& posted) {
  try {
    auto task = make_state<Task>(*this, ops, call, posted);
    queue_->submit(call.seq, task);
    return Work(std::move(task));
  } catch (const std::bad_alloc&) {
    const Error why(Errc::resource_exhausted, "no memory to queue the call");
    refuse(ops, call, why);
    throw Error(why);
  } catch (const Error& error) {
    if (error.code() == Errc::resource_exhausted) refuse(ops, call, error);
    throw;
  }
}

void HostBackend::refuse(std::span<const Op> ops, const Call& call, const Error& why) noexcept {
  publish(ops, call, why);
  if (call.in_order || has_collective(ops)) queue_->skip(call.seq);
}

}  // namespace tutti::internal
