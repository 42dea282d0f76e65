#include "watcher.hpp"

#include <algorithm>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "backend/record.hpp"
#include "values/current_error.hpp"
#include "values/fail.hpp"
#include "values/group_errors.hpp"

namespace tutti::backend::nccl {
namespace {

using namespace std::chrono_literals;

/// The time for which a message of a rank that has left may still arrive.
constexpr auto last_message = 200ms;
/// A call that has run for this long may wait for a peer that does not respond.
constexpr auto patience_with_peers = 100ms;
/// NCCL compares nothing, so the ranks compare their calls this often, after the fact.
constexpr auto comparison_interval = 500ms;

}  // namespace

Watcher::Watcher(std::shared_ptr<Gpu> gpu, const BackendInit& init,
                 std::shared_ptr<Communicator> communicator, Launcher& launcher,
                 PointToPoint& messages, Failure& failure, internal::CallHistory& history)
    : gpu_(std::move(gpu)),
      init_(init),
      communicator_(std::move(communicator)),
      launcher_(launcher),
      messages_(messages),
      failure_(failure),
      history_(history) {}

void Watcher::start(std::shared_ptr<void> owner) {
  heartbeats_.emplace(init_);
  try {
    thread_ = std::thread([this, owner = std::move(owner)] { work(); });
  } catch (const std::system_error& error) {
    internal::failf(Errc::resource_exhausted, "cannot start the group's thread: {}", error.what());
  }
}

bool Watcher::stop() noexcept {
  const bool on_thread = std::this_thread::get_id() == thread_.get_id();
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(stop_, true)) return false;
  }
  changed_.notify_all();
  if (on_thread)
    thread_.detach();  // A continuation destroyed the last reference; the thread ends by itself.
  else if (thread_.joinable())
    thread_.join();
  return true;
}

void Watcher::watch(const std::shared_ptr<EventState>& state) {
  std::unique_lock lock(mutex_);
  if (drained_) {
    lock.unlock();
    return state->finish(std::make_exception_ptr(failure_.error_of(state->op(), state->call())));
  }
  if (failure_.is_broken()) state->ignore_event();
  pending_.push_back(state);
  is_compared_ = false;
  if (pending_.size() == 1) changed_.notify_all();
}

void Watcher::watch_graphs() {
  const std::lock_guard lock(mutex_);
  if (!std::exchange(has_graphs_, true)) changed_.notify_all();
}

void Watcher::wake() noexcept {
  {
    // Now the thread has not yet checked is_broken(), or it waits.
    const std::lock_guard lock(mutex_);
  }
  changed_.notify_all();
}

Communicators Watcher::communicators() const {
  auto all = messages_.communicators();
  all.insert(all.begin(), communicator_);
  return all;
}

/// Blocks until there is work, and fills `states` with the pending calls, if any. Returns false
/// when the thread has to end.
bool Watcher::await_work(States& states) {
  states.clear();
  std::unique_lock lock(mutex_);
  const auto awake = [&] {
    return stop_ || !pending_.empty() || (failure_.is_broken() && !drained_);
  };
  while (!awake()) {
    if (!has_graphs_ && is_compared_ && !heartbeats_->is_on()) {
      changed_.wait(lock, [&] { return awake() || has_graphs_; });
      continue;
    }
    const std::chrono::nanoseconds pause = is_compared_ ? rarest_look : comparison_interval;
    const auto beats = heartbeats_->is_on() ? heartbeats_->pause() : pause;
    if (changed_.wait_for(lock, std::min(pause, beats), awake)) break;
    const bool graphs = has_graphs_;
    const bool compares = has_graphs_ || !is_compared_;
    lock.unlock();
    const auto now = Clock::now();
    look_at_beats({}, now);
    if (graphs && now >= next_look_at_graphs_) {
      next_look_at_graphs_ = now + pause;
      look_at_graphs();
    }
    if (compares) compare_calls(now);
    lock.lock();
  }
  states = pending_;
  return !stop_ || (!pending_.empty() && !drained_) || (failure_.is_broken() && !drained_);
}

void Watcher::work() {
  // Also if it is the current one already: the launch of a kernel by the driver needs its context.
  cuda::use_device(gpu_->cuda(), gpu_->index());
  const DeviceScope scope(gpu_->cuda(), gpu_->index(), std::nothrow);
  // The thread queries events at any time, even while another thread captures. No event is
  // captured.
  const cuda::RelaxedCapture relaxed(gpu_->cuda());
  auto active = Clock::now();
  std::size_t before = 0;
  for (States states; await_work(states);) {
    if (failure_.is_broken()) {
      drain();
      continue;
    }
    if (before == 0) next_look_ = Clock::now() + first_look(init_.size);
    bool awaited = false;
    try {
      awaited = tick(states);
    } catch (...) {
      failure_.fail(internal::to_error(std::current_exception()));
      continue;
    }
    const auto now = Clock::now();
    {
      const std::lock_guard lock(mutex_);
      std::erase_if(pending_, [](const auto& state) { return state->HostState::done(); });
      if (pending_.size() != before) active = now;
      before = pending_.size();
    }
    states.clear();  // Without the lock: ended states may own groups.
    // A call that has just begun is likely to end soon. Its host waits by itself; each query takes
    // the driver's lock, which launches need.
    const auto pause =
        std::clamp<std::chrono::nanoseconds>((now - active) / 8, awaited ? 50us : 1ms, 5ms);
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, pause, [this] { return failure_.is_broken(); });
  }
}

void Watcher::look_at_graphs() noexcept {
  if (failure_.is_broken()) return;
  try {
    communicator_->look();
    failure_.poll_peers({});
  } catch (...) {
    failure_.fail(internal::to_error(std::current_exception()));
  }
}

/// Compares the calls so far with those of the rank that got furthest, until they were the same for
/// one interval: then a difference that a peer found has been seen, too.
void Watcher::compare_calls(Clock::time_point now) noexcept {
  if (now < next_comparison_ || init_.size == 1 || failure_.is_broken()) return;
  next_comparison_ = now + comparison_interval;
  has_changed_ = history_.has_changed() || has_changed_;
  // A comparison writes, and would block if the store does not answer.
  if (has_changed_ && !heartbeats_->ask_store()) return;
  const bool changed = std::exchange(has_changed_, false);
  try {
    const auto found =
        changed ? failure_.agreement().compare_calls(init_.name, init_.name, history_.take(), true)
                : std::nullopt;
    if (found)
      failure_.fail(Error(Errc::mismatch, found->text,
                          {.group = init_.name,
                           .operation = std::string(name_of(found->operation)),
                           .seq = static_cast<std::int64_t>(found->seq)}));
    else
      (void)failure_.poll_peers({});
  } catch (...) {  // Without the store nothing is compared.
  }
  const std::lock_guard lock(mutex_);
  if (!changed && pending_.empty()) is_compared_ = true;
}

/// Advances and ends calls. True if a function, or a call that NCCL has not queued, waits for this
/// thread.
bool Watcher::tick(const States& states) {
  bool awaited = !launcher_.try_advance();
  awaited = !messages_.advance() || awaited;
  awaited = !launcher_.spread_rows() || awaited;
  bool runs = false;  // A call runs behind which the later ones wait, so none of these is queried.
  for (const auto& state : states) {
    if ((runs && state->ends_in_order()) || !state->poll()) {
      runs = runs || state->ends_in_order();
      awaited = awaited || state->has_continuation();
      continue;
    }
    const auto error = state->error();
    if (error && internal::breaks_group(internal::to_error(error).code()))
      std::rethrow_exception(error);
  }
  communicator_->look();
  const auto now = Clock::now();
  for (const auto& state : states) {
    if (state->limit().time() > now || state->poll()) continue;
    failure_.fail_late(state->op(), state->call(), state->since());
    return awaited;
  }
  look_at_beats(states, now);
  compare_calls(now);
  if (now < next_look_ || !heartbeats_->store_answers()) return awaited;
  look_at_peers(states, now);
  // A slow store takes at most a third of the thread's time.
  next_look_ = std::max(next_look_, Clock::now() + 2 * (Clock::now() - now));
  return awaited;
}

/// Breaks the group if a rank does not respond for which a call has waited for a while.
void Watcher::look_at_beats(const States& states, Clock::time_point now) {
  if (!heartbeats_->is_on() || now < next_look_at_beats_ || failure_.is_broken()) return;
  next_look_at_beats_ = now + heartbeats_->pause() / 4;
  std::vector<int> awaited;
  for (const auto& state : states) {
    if (now - state->since() < patience_with_peers || state->HostState::done()) continue;
    if (state->is_message()) {
      awaited.push_back(state->op().peer);
      continue;
    }
    awaited.clear();  // A collective waits for all.
    for (int r = 0; r < init_.size; ++r) awaited.push_back(r);
    break;
  }
  std::erase(awaited, init_.rank);
  std::ranges::sort(awaited);
  awaited.erase(std::unique(awaited.begin(), awaited.end()), awaited.end());
  const auto dead = heartbeats_->look(now, awaited);
  failure_.agreement().set_silent(!heartbeats_->store_answers());
  if (dead) (void)failure_.fail({.cause = *dead});
}

void Watcher::look_at_peers(const States& states, Clock::time_point now) {
  const auto pending = std::ranges::find_if(states, [](const auto& s) { return !s->poll(); });
  if (pending == states.end()) return;
  next_look_ = now + between_looks(now - (*pending)->since(), init_.size);
  const auto collective = std::ranges::find_if(
      states, [](const auto& s) { return !s->is_message() && !s->HostState::done(); });
  if (failure_.poll_peers(collective == states.end()
                              ? internal::Status()
                              : failure_.status_of((*collective)->op(), (*collective)->call())))
    return;
  failure_.collect_refusals();
  for (const auto& state : states) {
    const auto& op = state->op();
    const auto* refusal = failure_.refusal_of(op, state->call());
    if (refusal == nullptr || state->poll()) continue;
    // Breaks the group, because NCCL cannot cancel operations that this rank has queued.
    return failure_.fail(
        internal::refused_error(init_.name, {&op, 1}, state->call(), refusal->rank, refusal->text));
  }
  for (const auto& [rank, ended] : failure_.departed()) {
    const auto since = gone_since_.try_emplace(rank, now).first->second;
    for (const auto& state : states) {
      const bool needs = state->is_message()
                             ? state->op().peer == rank && now - since > last_message
                             : state->call().seq >= ended;
      if (!needs || state->poll()) continue;
      return failure_.fail(internal::call_error(Errc::peer_lost, init_.name, {&state->op(), 1},
                                                state->call(), rank,
                                                fmt::format("rank {} has left the group", rank)));
    }
  }
}

/// Waits until the work on the group's streams has run. Returns false at the limit.
bool Watcher::await_idle(Deadline limit) noexcept {
  try {
    const DeviceScope scope(gpu_->cuda(), gpu_->index());
    auto streams = messages_.streams();
    const auto of_calls = launcher_.streams();
    streams.insert(streams.end(), of_calls.begin(), of_calls.end());
    for (const auto stream : streams) {
      auto end = gpu_->event();
      end.record(stream);
      for (Pause pause; !end.done(); pause())
        if (limit.expired()) return false;
    }
  } catch (...) {  // The device is lost: nothing runs on it any more.
  }
  return true;
}

/// Aborts the group, and ends its calls when nothing uses their arrays any more.
void Watcher::drain() noexcept {
  States states;
  {
    const std::lock_guard lock(mutex_);
    states = pending_;  // watch() handles later calls.
  }
  for (const auto& state : states)
    if (!state->poll()) state->ignore_event();
  const auto limit = Deadline::after(abort_bound);
  const bool aborted = abort_all(communicators());
  const bool in_time = aborted && await_idle(limit);
  launcher_.give_up(in_time);
  messages_.give_up();
  const char* const held =
      communicator_->is_held()
          ? "; CUDA graphs with calls of the group are left: destroy them, which ends the "
            "communicator, and launch none of them again"
          : "";
  failure_.set_drained(
      in_time ? held
              : fmt::format("; {} within {} s, so the device may still write to the arrays of this "
                            "call: end the process",
                            aborted ? "the streams of the group have not ended after the abort"
                                    : "ncclCommAbort has not returned",
                            abort_bound.count()));
  States left;
  {
    const std::lock_guard lock(mutex_);
    left.swap(pending_);
    drained_ = true;
  }
  for (const auto& state : left)
    state->finish(std::make_exception_ptr(failure_.error_of(state->op(), state->call())));
}

}  // namespace tutti::backend::nccl
