#include "shared_state.hpp"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "group/agreement.hpp"
#include "group/record.hpp"
#include "values/fail.hpp"
#include "values/group_errors.hpp"

namespace tutti::backend::local {
namespace {

void pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

constexpr int spins = 1000;  // A pause is about 50 ns.
constexpr int yields = 50;
// After a yield longer than long_yield, the next waits_without_yields waits do not yield.
constexpr std::chrono::milliseconds long_yield(1);
constexpr int waits_without_yields = 1000;

}  // namespace

const Op& Round::collective(int rank, std::size_t k) const {
  for (const auto& op : slots[static_cast<std::size_t>(rank)].ops)
    if (!is_point_to_point(op.kind) && k-- == 0) return op;
  fail(Errc::backend, "local: no such operation in the round");
}

std::size_t Round::collectives() const {
  return static_cast<std::size_t>(std::ranges::count_if(
      slots[0].ops, [](const Op& op) { return !is_point_to_point(op.kind); }));
}

SharedState::SharedState(std::string group, int size)
    : group_(std::move(group)),
      size_(size),
      spins_(size <= static_cast<int>(std::thread::hardware_concurrency()) ? spins : 0),
      joined_(static_cast<std::size_t>(size)),
      gone_(static_cast<std::size_t>(size)),
      last_(static_cast<std::size_t>(size), -1),
      mailbox_(group_, size, [this](const Error& cause) { break_with(cause); }) {
  // A rank can be one round ahead of the others. Rounds made here cost no allocation later.
  for (int i = 0; i < 2; ++i) spare_.emplace_back().slots.resize(static_cast<std::size_t>(size));
}

void SharedState::join(int rank, Deadline limit) {
  std::unique_lock lock(mutex_);
  if (joined_[static_cast<std::size_t>(rank)])
    internal::failf(Errc::invalid_argument,
                    "group '{}': rank {} has already joined; every rank joins once", group_, rank);
  joined_[static_cast<std::size_t>(rank)] = true;
  ++members_;
  moved_.notify_all();
  const auto complete = [&] { return members_ == size_ || cause_.has_value(); };
  if (limit.is_none())
    moved_.wait(lock, complete);
  else
    moved_.wait_until(lock, limit.time(), complete);
  if (cause_) throw Error(*cause_);
  if (members_ == size_) return;
  std::vector<int> absent;
  for (int r = 0; r < size_; ++r)
    if (!joined_[static_cast<std::size_t>(r)]) absent.push_back(r);
  cause_ = Error(Errc::timeout, fmt::format("group '{}': {} of {} ranks joined; missing: {}",
                                            group_, members_, size_, internal::list_ranks(absent)));
  moved_.notify_all();
  throw Error(*cause_);
}

Round& SharedState::find(std::uint64_t seq) {
  for (auto& round : rounds_)
    if (round.seq == seq) return round;
  if (spare_.empty()) {
    spare_.emplace_back();
    spare_.back().slots.resize(static_cast<std::size_t>(size_));
  }
  rounds_.splice(rounds_.end(), spare_, spare_.begin());
  auto& round = rounds_.back();
  round.seq = seq;
  std::ranges::fill(round.slots, Round::Slot{});
  round.arrived = 0;
  round.error.reset();
  round.finished.store(0, std::memory_order_relaxed);
  round.left.store(0, std::memory_order_relaxed);
  round.state.store(Round::State::open, std::memory_order_relaxed);
  return round;
}

void SharedState::depart(Round& round) noexcept {
  if (round.left.fetch_add(1) + 1 == size_) recycle(round);
}

void SharedState::recycle(Round& round) noexcept {
  const auto it = std::ranges::find_if(rounds_, [&](const Round& r) { return &r == &round; });
  spare_.splice(spare_.begin(), rounds_, it);
}

std::optional<Error> SharedState::compare(const Round& round) {
  const auto& first = round.slots[0];
  const bool equal = std::ranges::all_of(round.slots, [&](const Round::Slot& slot) {
    return slot.call->fingerprint == first.call->fingerprint;
  });
  if (!equal) {
    std::vector<internal::Record> records;
    for (const auto& slot : round.slots)
      records.push_back(internal::Record::of(slot.ops, *slot.call));
    return internal::compare(group_, first.ops, *first.call, records);
  }
  for (std::size_t k = 0; k < round.collectives(); ++k) {
    if (round.collective(0, k).kind != Operation::all_to_all) continue;
    auto error = internal::compare_rows(
        group_, first.ops, *first.call, size_,
        [&](int from, int to) { return round.collective(from, k).send_rows[to]; },
        [&](int from, int to) { return round.collective(to, k).rows[from]; });
    if (error) return error;
  }
  return std::nullopt;
}

Error SharedState::missing(Errc code, const Round& round, std::span<const Op> ops, const Call& call,
                           const char* what) const {
  std::vector<internal::Presence> ranks;
  for (int r = 0; r < size_; ++r) {
    const auto i = static_cast<std::size_t>(r);
    ranks.push_back(
        {.entered = round.slots[i].call != nullptr,
         .left = gone_[i],
         .last = last_[i] < 0 ? "no collective yet" : fmt::format("last seen in #{}", last_[i])});
  }
  return internal::name_missing(internal::call_error(code, group_, ops, call, -1, what), ranks,
                                internal::describe(ops, call));
}

/// Spins for a bounded time. Returns whether `over` has become true.
template <typename Over>
bool SharedState::spin(const Over& over) const noexcept {
  for (int i = 0; i < spins_; ++i) {
    if (over()) return true;
    pause();
  }
  return false;
}

/// Polls for a bounded time. Returns whether `over` has become true; if not, the caller sleeps.
/// When ranks outnumber the cores, yields the core to another rank, which costs less than a sleep.
/// After a long yield, because another program took the core for a time slice, the next waits
/// sleep.
template <typename Over>
bool SharedState::look(const Over& over) noexcept {
  if (spins_ != 0) return spin(over);
  if (unyielding_.load(std::memory_order_relaxed) > 0) {
    unyielding_.fetch_sub(1, std::memory_order_relaxed);
    return over();
  }
  const auto begin = Deadline::Clock::now();
  bool seen = over();
  for (int i = 0; i < yields && !seen; ++i) {
    std::this_thread::yield();
    seen = over();
  }
  if (Deadline::Clock::now() - begin > long_yield)
    unyielding_.store(waits_without_yields, std::memory_order_relaxed);
  return seen;
}

/// Spins first: the lock is held for less time than a sleep and a wake-up take.
std::unique_lock<std::mutex> SharedState::acquire() const {
  std::unique_lock lock(mutex_, std::defer_lock);
  spin([&] { return lock.try_lock(); });
  if (!lock.owns_lock()) lock.lock();
  return lock;
}

/// Waits until the round is no longer open, the group has broken, or a rank has left without
/// entering. Returns false at the call's deadline.
bool SharedState::wait_open(Round& round, std::unique_lock<std::mutex>& lock, const Call& call) {
  const auto over = [&] {
    if (round.state.load(std::memory_order_relaxed) != Round::State::open || cause_) return true;
    for (int r = 0; r < size_; ++r)  // Left without entering.
      if (gone_[static_cast<std::size_t>(r)] &&
          round.slots[static_cast<std::size_t>(r)].call == nullptr)
        return true;
    return false;
  };
  if (over()) return true;
  // limit() reads the clock, so it is called only when the call has to wait.
  const auto limit = call.limit();
  bool in_time = true;
  ++sleepers_;
  if (limit.is_none())
    moved_.wait(lock, over);
  else
    in_time = moved_.wait_until(lock, limit.time(), over);
  --sleepers_;
  return in_time;
}

Round& SharedState::enter(int rank, std::span<const Op> ops, const Call& call) {
  auto lock = acquire();
  if (cause_) throw internal::broken(*cause_);
  auto& round = find(call.seq);
  round.slots[static_cast<std::size_t>(rank)] = {ops, &call};
  last_[static_cast<std::size_t>(rank)] = static_cast<std::int64_t>(call.seq);
  bool wake = false;
  if (++round.arrived == size_ && round.state.load() == Round::State::open) {
    round.error = compare(round);
    round.state.store(round.error ? Round::State::failed : Round::State::running,
                      std::memory_order_release);
    wake = sleepers_.load() != 0;
  }
  lock.unlock();
  if (wake) moved_.notify_all();
  const auto state = [&] { return round.state.load(std::memory_order_acquire); };
  look([&] { return state() != Round::State::open; });
  if (state() == Round::State::running) return round;
  lock.lock();
  const bool in_time = wait_open(round, lock, call);
  if (state() == Round::State::running) return round;
  if (state() == Round::State::failed) {
    const Error error = *round.error;
    depart(round);
    throw Error(error);
  }
  if (!cause_)
    cause_ = in_time ? missing(Errc::peer_lost, round, ops, call, "a rank has left")
                     : missing(Errc::timeout, round, ops, call, "the deadline passed");
  const Error error = *cause_;
  round.slots[static_cast<std::size_t>(rank)] = {};  // This rank's operations go out of scope.
  lock.unlock();
  break_with(error);  // Ends the messages too.
  throw Error(error);
}

void SharedState::finish_step(Round& round, int step) noexcept {
  const int all = size_ * (step + 1);
  // Sequentially consistent with sleepers_ below: either this rank sees the sleeper, or the sleeper
  // sees this step.
  if (round.finished.fetch_add(1) + 1 >= all) {
    if (sleepers_.load() == 0) return;
    { const std::lock_guard lock(mutex_); }  // A rank that counted itself is asleep now.
    moved_.notify_all();
    return;
  }
  const auto over = [&] { return round.finished.load() >= all; };
  if (look(over)) return;
  std::unique_lock lock(mutex_);
  ++sleepers_;
  moved_.wait(lock, over);
  --sleepers_;
}

void SharedState::fail_round(Round& round, int rank, std::span<const Op> ops, const Call& call,
                             const Error& why) {
  const auto error = internal::call_error(why.code(), group_, ops, call, rank,
                                          fmt::format("rank {}: {}", rank, why.message()));
  {
    const auto lock = acquire();
    if (!round.error) round.error = error;
  }
  break_with(error);
}

void SharedState::leave_round(Round& round) noexcept {
  if (round.left.fetch_add(1) + 1 < size_) return;
  const auto lock = acquire();
  recycle(round);
}

void SharedState::refuse_round(int rank, std::span<const Op> ops, const Call& call,
                               const Error& why) noexcept {
  const std::lock_guard lock(mutex_);
  if (cause_) return;
  auto& round = find(call.seq);
  if (round.state.load() == Round::State::open) {
    round.error =
        internal::refused_error(group_, ops, call, rank, internal::refusal_text(ops, call, why));
    round.state.store(Round::State::failed, std::memory_order_release);
  }
  ++round.arrived;
  last_[static_cast<std::size_t>(rank)] = static_cast<std::int64_t>(call.seq);
  depart(round);
  moved_.notify_all();
}

void SharedState::leave(int rank) noexcept {
  {
    const std::lock_guard lock(mutex_);
    gone_[static_cast<std::size_t>(rank)] = true;
    moved_.notify_all();
  }
  mailbox_.leave(rank);
}

void SharedState::break_with(const Error& cause) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!cause_) cause_ = cause;
    moved_.notify_all();
  }
  mailbox_.fail(cause);
}

std::optional<Error> SharedState::cause() const {
  const std::lock_guard lock(mutex_);
  return cause_;
}

}  // namespace tutti::backend::local
