#include "group/core.hpp"

#include <algorithm>
#include <new>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "backend/fingerprint.hpp"
#include "backend/record.hpp"
#include "group/lowering.hpp"
#include "values/current_error.hpp"
#include "values/fail.hpp"
#include "values/group_errors.hpp"

namespace tutti::internal {
namespace {

DType dtype_of(const Op& op) noexcept {
  return op.kind == Operation::recv || op.kind == Operation::scatter ? op.out.dtype : op.in.dtype;
}

/// False for the collective that was lowered to `ops`.
bool is_one_of(const Op& op, std::span<const Op> ops) noexcept {
  return std::ranges::any_of(ops, [&](const Op& other) { return &other == &op; });
}

std::uint64_t traced_seq(const Op& shown, const Call& call) noexcept {
  return is_point_to_point(shown.kind) ? shown.seq : call.seq;
}

/// Makes `stream` wait for `work`; rethrows the error of `work` if it is already known.
void follow(Work work, Stream stream) {
  work.block_stream(stream);  // On host memory this waits.
  if (work.done()) return work.wait();
  (void)std::move(work).release();
}

}  // namespace

Core::Core(const GroupOptions& options, std::unique_ptr<Backend> backend,
           const BackendChoice& choice, RankLocations locations, TraceMemory traces)
    : options_(options),
      choice_(choice),
      locations_(std::move(locations)),
      backend_name_(choice.entry == nullptr ? "custom" : choice.entry->name),
      bounds_{options.rank, options.size, backend->memory().device(),
              options.reproducible.value_or(false)},
      memory_(options.memory == nullptr ? &backend->memory() : options.memory),
      traces_(std::move(traces)),
      timeout_(options.timeout),
      backend_(std::move(backend)) {}

Core::~Core() {
  // A forked child has no threads of the backend, so it cannot destroy the backend. The trace is
  // the parent's.
  if (!fork_guard_.forked()) {
    note_lost_rank();
    return;
  }
  (void)backend_.release();
  (void)traces_.release();
}

std::optional<Error> Core::lost_rank() const {
  auto cause = backend_->failure();
  if (!cause || cause->code() != Errc::peer_lost) return std::nullopt;
  // The ranks of another group, whose connections this one shares, have other numbers.
  const auto& where = cause->where();
  return where.group.empty() || where.group == options_.name ? cause : std::nullopt;
}

int Core::ranks_on_host_below(int rank) const {
  if (choice_.entry == nullptr)
    failf(Errc::unsupported,
          "group '{}': the caller made the Backend object, so the hosts of its ranks are unknown",
          options_.name);
  const auto host_at = [&](int r) {
    return locations_.empty() ? std::string() : locations_[static_cast<std::size_t>(r)]->host;
  };
  int count = 0;
  for (int r = 0; r < rank; ++r) count += host_at(r) == host_at(bounds_.rank) ? 1 : 0;
  return count;
}

void Core::throw_unusable(std::string_view operation) const {
  const auto location = [&](int rank) {
    return Error::Where{.group = options_.name, .operation = std::string(operation), .rank = rank};
  };
  if (fork_guard_.forked())
    throw Error(Errc::forked, "the group was made before fork(); make a new one in the child",
                location(bounds_.rank));
  const std::lock_guard lock(cause_mutex_);
  if (std::exchange(report_cause_, false)) throw Error(*cause_);
  const Error error = broken(*cause_);
  auto where = location(error.where().rank);
  where.earlier = true;
  throw Error(error.code(), error.message(), where);
}

void Core::break_with(const Error& cause, bool report) noexcept {
  {
    const std::lock_guard lock(cause_mutex_);
    if (cause_ || fork_guard_.forked()) return;  // The child has no threads of the backend.
    cause_ = cause;
    report_cause_ = report;
    broken_ = true;
  }
  backend_->abort(cause.what());
  // A warning if no call has thrown the error.
  log(report ? LogLevel::warning : LogLevel::info,
      [&] { return fmt::format("group '{}': {}", options_.name, cause.what()); });
}

void Core::end_for_lack_of_memory(std::string_view operation) {
  const Error error = with_place(out_of_memory(), operation);
  break_with(error, false);
  throw Error(error);
}

/// Returns `error` with the place of this rank's call, or itself if there is no memory for it.
Error Core::with_place(const Error& error, std::string_view operation) const noexcept try {
  return {error.code(),
          error.message(),
          {.group = options_.name, .operation = std::string(operation), .rank = bounds_.rank}};
} catch (...) {
  return error;
}

void Core::collected(std::uint64_t token, bool failed) noexcept {
  if (fork_guard_.forked()) [[unlikely]]
    return;  // The trace may be in memory that is shared with the parent.
  if (failed) told_ = true;
  const auto state = failed ? TraceEntry::State::failed : TraceEntry::State::done;
  ((token & 1) != 0 ? traces_->messages : traces_->collectives).end(token >> 1, state);
}

void Core::uncollected(const Error& error) noexcept {
  break_with(error, true);
}

void Core::callback_threw(const Error& error) noexcept {
  log(LogLevel::error, [&] {
    return fmt::format("group '{}': a callback of on_done() threw: {}", options_.name,
                       error.what());
  });
}

void Core::abort(std::string_view why) noexcept {
  if (fork_guard_.forked()) return;
  backend_->abort(why);
}

void Core::set_timeout(std::chrono::nanoseconds timeout) {
  if (timeout.count() <= 0)
    failf(Errc::invalid_argument, "group '{}': timeout is {} ns; it must be positive",
          options_.name, timeout.count());
  timeout_.store(timeout, std::memory_order_relaxed);
}

Trace Core::trace() const {
  Trace out;
  traces_->collectives.read(out);
  traces_->messages.read(out);
  std::ranges::stable_sort(out, {}, &TraceEntry::started);
  return out;
}

void Core::check(Op& op, const CallOptions& options, bool supported) const {
  validate(op, bounds_, options);
  if (!supported) [[unlikely]]
    failf(Errc::unsupported, "backend '{}' does not implement {}; choose another backend",
          backend_name_, describe(op));
  if (op.reproducible && !backend_->reproduces()) [[unlikely]]
    failf(Errc::unsupported,
          "backend '{}' has no reproducible sums; use order_fixed, or a backend of host memory",
          backend_name_);
}

void Core::check_any_peer(const Op& op, std::string_view verb) const {
  if (verb != name_of(Operation::recv))
    failf(Errc::invalid_argument,
          "{}: the peer of its {} is any_peer, which only recv accepts; name a rank", verb,
          name_of(op.kind));
  if (supports(Operation::recv_any, DType::u8, ReduceOp::Kind::sum)) return;
  std::string able;
  for (const auto& entry : backends())
    if (entry.receives_from_any) able += fmt::format("{}{}", able.empty() ? "" : ", ", entry.name);
  failf(Errc::unsupported,
        "recv: backend '{}' cannot receive from any_peer; name the peer, or choose a backend that "
        "can: {}",
        backend_name_, able.empty() ? "this build has none" : able);
}

void Core::check_peer(const Op& op, std::string_view verb) const {
  if (op.tag < 0) [[unlikely]]
    failf(Errc::invalid_argument, "{}: tag is {}; it must be >= 0", name_of(op.kind), op.tag);
  if (op.peer == any_peer) [[unlikely]]
    return check_any_peer(op, verb);
  if (op.peer < 0 || op.peer >= bounds_.size) [[unlikely]]
    failf(Errc::invalid_argument, "{}: peer is {}; this group has ranks 0 to {}{}",
          name_of(op.kind), op.peer, bounds_.size - 1,
          verb == name_of(Operation::recv) ? "; any_peer receives from any rank" : "");
}

void Core::throw_moved_from() {
  fail(Errc::invalid_argument,
       "this ProcessGroup has been moved from; use the one that it was moved to");
}

void Core::throw_collecting(std::string_view verb) const {
  failf(Errc::invalid_argument,
        "{}: group '{}' is collecting calls for a Coalesce; call {}_async, or call launch() first",
        verb, options_.name, verb);
}

void Core::prepare_or_refuse(Op& op, const CallOptions& options, bool blocking, Prepare prepare,
                             std::string_view caller) {
  auto why = refusal_of([&] { prepare(op); });
  if (!why) return;
  if (!caller.empty() && why->where().operation.empty())
    why = Error(why->code(), why->message(),
                {.group = options_.name, .operation = std::string(caller), .rank = bounds_.rank});
  if (collects_here()) throw Error(*why);  // Before launch() the peers know of no call.
  // If the backend lacks the operation, the peers wait in sends and receives. Asks for u8, because
  // this rank's dtype may be the wrong one.
  if (can_lower(op.kind) && !supports(op.kind, DType::u8, ReduceOp::Kind::sum)) {
    auto pairs = refused_pairs(op, bounds_);
    const Call call = number(pairs, options, blocking, true);
    refuse(pairs, call, *why, op);
  }
  const Call call = number({&op, 1}, options, blocking, false);
  refuse({&op, 1}, call, *why, op);
}

Work Core::issue(Op& op, const CallOptions& options, Wait wait, Prepare prepare,
                 std::string_view caller) try {
  const bool blocking = wait != Wait::nothing;
  if (is_unusable()) [[unlikely]]
    throw_unusable(name_of(op.kind));
  if (is_point_to_point(op.kind)) check_peer(op, name_of(op.kind));
  const bool collecting = collects_here();
  if (collecting && blocking) [[unlikely]]
    throw_collecting(name_of(op.kind));
  if (prepare) prepare_or_refuse(op, options, blocking, prepare, caller);
  bool supported = supports(op.kind, dtype_of(op), op.reduce.kind);
  if (!supported && op.kind == Operation::barrier) [[unlikely]] {
    lower_barrier(op);
    supported = supports(op.kind, op.in.dtype, op.reduce.kind);
  }
  if (collecting) [[unlikely]] {
    auto* open = collector.load(std::memory_order_relaxed);  // Written by this thread.
    const bool lowered = !supported && can_lower(op.kind);
    check(op, options, supported || lowered);
    return lowered ? open->collect(to_point_to_point(op, bounds_), options, true)
                   : open->collect({&op, 1}, options, false);
  }
  if (!supported && can_lower(op.kind)) [[unlikely]]
    return lower(op, options, wait);

  const std::span<Op> ops(&op, 1);
  Call call = number(ops, options, blocking, false);
  check_numbered(op, options, call, supported);
  sign(ops, call);
  return send(ops, call, op, wait);
} catch (const std::bad_alloc&) {
  end_for_lack_of_memory(name_of(op.kind));
}

Work Core::issue_pair(std::span<Op, 2> pair, const CallOptions& options, Wait wait) try {
  constexpr std::string_view verb = "sendrecv";
  check_usable(verb);
  const bool blocking = wait != Wait::nothing;
  const bool collecting = collects_here();
  if (collecting && blocking) throw_collecting(verb);
  const auto bad_peer = [&](const Op& op) { return refusal_of([&] { check_peer(op, verb); }); };
  const std::array<std::optional<Error>, 2> bad{bad_peer(pair[0]), bad_peer(pair[1])};
  if (bad[0] || bad[1]) [[unlikely]] {
    const bool both = bad[0] && bad[1];
    const auto at = bad[0] ? 0U : 1U;
    if (both || collecting) throw Error(*bad[at]);
    // The peer of the valid message waits for it.
    const auto good = pair.subspan(1 - at, 1);
    const Call call = number(good, options, blocking, false);
    refuse(good, call, *bad[at], pair[at]);
  }
  const Op* checked = pair.data();
  const auto check_both = [&] {
    for (Op& op : pair) {
      checked = &op;
      check(op, options, supports(op.kind, dtype_of(op), op.reduce.kind));
    }
    check_apart(pair[0].in, pair[1].out, verb);
  };
  if (collecting) {
    check_both();
    return collector.load(std::memory_order_relaxed)->collect(pair, options, false);
  }
  Call call = number(pair, options, blocking, false);
  if (const auto why = refusal_of(check_both)) refuse(pair, call, *why, *checked);
  sign(pair, call);
  return send(pair, call, pair[0], wait);
} catch (const std::bad_alloc&) {
  end_for_lack_of_memory("sendrecv");
}

void Core::check_numbered(Op& op, const CallOptions& options, const Call& call, bool supported) {
  if (const auto why = refusal_of([&] { check(op, options, supported); }))
    refuse({&op, 1}, call, *why, op);
}

void Core::refuse(std::span<const Op> ops, const Call& call, const Error& why, const Op& shown) {
  const auto [ring, index] = trace_slot(shown, call);
  ring->begin(index, traced_seq(shown, call), shown.kind, shown, 1, !call.blocking, call.name);
  ring->end(index, TraceEntry::State::refused);
  backend_->refuse(ops, call, why);
  throw with_location(why, options_.name, {&shown, 1}, call, bounds_.rank);
}

Work Core::launch(std::span<Op> ops, const CallOptions& options, bool in_order) try {
  check_usable(operation_of(ops));
  Call call = number(ops, options, false, in_order);
  sign(ops, call);
  // Traces are compared by collectives: ranks have the same, but not the same messages.
  const auto collective =
      std::ranges::find_if_not(ops, [](const Op& op) { return is_point_to_point(op.kind); });
  return send(ops, call, collective == ops.end() ? ops[0] : *collective, Wait::nothing);
} catch (const std::bad_alloc&) {
  end_for_lack_of_memory(operation_of(ops));
}

Call Core::number(std::span<Op> ops, const CallOptions& options, bool blocking, bool in_order) {
  Call call = make_call(options, blocking);
  call.in_order = in_order;
  bool collective = in_order;
  for (auto& op : ops) {
    if (is_point_to_point(op.kind)) {
      const std::lock_guard lock(pairs_mutex_);
      op.seq = pair_seq_[{op.kind == Operation::send, op.peer, op.tag}]++;
    } else {
      collective = true;
    }
  }
  if (collective) call.seq = next_seq_.fetch_add(1, std::memory_order_relaxed);
  return call;
}

void Core::sign(std::span<Op> ops, Call& call) noexcept {
  Hash all;
  for (auto& op : ops) {
    if (!is_point_to_point(op.kind)) {
      add(all, op);
      continue;
    }
    Hash own;
    add(own, op);
    op.fingerprint = finish_hash(own, call);
  }
  call.fingerprint = finish_hash(all, call);
}

std::pair<TraceRing*, std::uint64_t> Core::trace_slot(const Op& shown, const Call& call) noexcept {
  if (!is_point_to_point(shown.kind)) return {&traces_->collectives, call.seq};
  return {&traces_->messages, next_pair_.fetch_add(1, std::memory_order_relaxed)};
}

Work Core::send(std::span<const Op> ops, const Call& call, const Op& shown, Wait wait) {
  const auto [ring, index] = trace_slot(shown, call);
  ring->begin(index, traced_seq(shown, call), shown.kind, shown,
              ops.size() > 1 && is_one_of(shown, ops) ? ops.size() : 1, !call.blocking, call.name);
  try {
    Work work = backend_->launch(ops, call);
    const bool kept = work.state() != nullptr && wait != Wait::stream;
    if (work.state() != nullptr && !kept) follow(std::move(work), call.stream);
    if (!kept) {
      ring->end(index, TraceEntry::State::done);
      return {};
    }
    const auto token = index << 1 | (ring == &traces_->messages ? 1U : 0U);
    return Work(std::move(work).release(), shared_from_this(), token);
  } catch (...) {
    ring->end(index, TraceEntry::State::failed);
    const Error error = with_location(first_told(to_error(std::current_exception())), options_.name,
                                      {&shown, 1}, call, bounds_.rank);
    if (breaks_group(error.code())) break_with(error, false);
    throw Error(error);
  }
}

/// A rank was lost while this one made no call: its next call gets the cause, as calls in progress
/// do. `error`: of the backend.
Error Core::first_told(const Error& error) const noexcept {
  if (!error.where().earlier || told_) return error;
  return described(error.code(), [&] {
    const auto cause = lost_rank();
    return cause ? Error(Errc::peer_lost, cause->message(), {.rank = cause->where().rank}) : error;
  });
}

void Core::lower_barrier(Op& op) {
  {
    // One byte for all barriers: they run in order, and its value does not matter.
    const std::lock_guard lock(pairs_mutex_);
    if (barrier_byte_.data() == nullptr) barrier_byte_ = Tensor(*memory_, {1}, DType::u8);
  }
  op = {.kind = Operation::all_reduce,
        .in = barrier_byte_,
        .out = barrier_byte_,
        .reduce = ReduceOp::bor};
}

Work Core::lower(Op& op, const CallOptions& options, Wait wait) {
  const bool blocking = wait != Wait::nothing;
  if (const auto why = refusal_of([&] { validate(op, bounds_, options); })) {
    // The peers wait in their sends and receives, so these are refused.
    auto pairs = refused_pairs(op, bounds_);
    const Call call = number(pairs, options, blocking, true);
    refuse(pairs, call, *why, op);
  }
  auto pairs = to_point_to_point(op, bounds_);
  Call call = number(pairs, options, blocking, true);
  sign(pairs, call);
  return send(pairs, call, op, wait);
}

}  // namespace tutti::internal
