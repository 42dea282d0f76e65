#include "member.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "backend/record.hpp"
#include "values/current_error.hpp"
#include "values/fail.hpp"
#include "values/group_errors.hpp"

namespace tutti::backend::memory {
namespace {

using namespace std::chrono_literals;

/// A sleeping rank looks at the group's state this often.
constexpr std::chrono::nanoseconds slice_of_sleep = 20ms;
/// The time between comparisons of calls by a rank that waits in a part between hosts.
constexpr auto time_of_comparison = 500ms;

}  // namespace

Error dead_error(const internal::GroupNames& names, int rank) noexcept {
  return internal::described(Errc::peer_lost, [&, shown = names(rank)] {
    return Error(Errc::peer_lost, fmt::format("the process of rank {} has ended", shown),
                 {.rank = shown});
  });
}

Member::Member(const BackendInit& init, Membership made)
    : names_(init.name, init.whole),
      rank_(init.rank),
      size_(init.size),
      checked_(init.checked),
      dead_after_(init.dead_after),
      made_(std::move(made)),
      polling_(static_cast<std::size_t>(init.size), made_.cores),
      in_one_process_(std::ranges::none_of(made_.processes, &Descriptor::is_open)),
      peer_memory_(made_, init.name, init.logger),
      stopped_peers_(static_cast<std::size_t>(init.size), stopped_process()),
      agreement_(init.store, init.rank, init.size),
      random_(static_cast<std::uint32_t>(init.rank) + 1) {
  for (const auto& process : made_.processes) processes_.push_back({process.get(), POLLIN, 0});
  if (const auto* whole = names_.whole();
      whole != nullptr && whole->between_hosts && whole->history)
    of_whole_.emplace(whole->store, names_(rank_), size_);
}

// --- Waiting ---

// A rank that is about to sleep (A) stores whom it waits for, counts itself, and then loads the
// word again. A rank that stores the word (B) has a fence after that, and then loads the count and
// A's store. All but the word's store are sequentially consistent, and the fence orders that one
// too, so either A sees the new word or B sees that A sleeps.
//
// The fence waits until the store has reached the cache, which takes as long as a peer's answer.
// So B first uses the time: publish() only looks whether a rank sleeps already, and the fence
// follows when B has to wait longer than a few pauses, or at the end of the call. A rank that falls
// asleep in between is woken that late, and by itself after a slice of its sleep.
void Member::publish(Number& word, std::uint64_t value) noexcept {
  word.store(value, std::memory_order_release);  // With the data before it.
  unnotified_ = true;
  // Relaxed: only to find most sleepers early.
  if (shared().sleepers.load(std::memory_order_relaxed) != 0) notify_of_stores();
}

void Member::notify() noexcept {
  internal::full_fence();
  if (shared().sleepers.load(std::memory_order_seq_cst) != 0) wake_waiters();
}

void Member::wake_waiters() noexcept {
  for (int r = 0; r < size_; ++r) {
    auto& bell = of(r).collectives;
    if (bell.sleeps.load(std::memory_order_seq_cst) == static_cast<std::uint32_t>(rank_) + 1)
      ring_bell(bell);
  }
}

void Member::ring_bell(Bell& bell) noexcept {
  // Release: a rank that hears this ring sees the words stored before. The kernel compares the word
  // under its lock, so it does not let a thread sleep that has loaded it before.
  bell.bell.fetch_add(1, std::memory_order_release);
  internal::futex_wake(bell.bell, internal::Sharing::processes);
}

void Member::wake_all() noexcept {
  for (int r = 0; r < size_; ++r) {
    ring_bell(of(r).collectives);
    ring_bell(of(r).messages);
  }
}

void Member::await_asleep(const Awaited& awaited) {
  if (!limit_.is_set()) limit_ = call_->limit();
  auto& bell = mine().collectives;
  while (!awaited.reached(std::memory_order_acquire)) {
    look(awaited);
    bell.sleeps.store(static_cast<std::uint32_t>(awaited.peer) + 1, std::memory_order_seq_cst);
    shared().sleepers.fetch_add(1, std::memory_order_seq_cst);
    // Acquire, before the last look at the word: after a ring that this load sees, the look sees
    // the word; after a later ring, the kernel does not let this thread sleep.
    const auto heard = bell.bell.load(std::memory_order_acquire);
    if (!awaited.reached(std::memory_order_seq_cst) && !is_broken())
      internal::futex_wait(bell.bell, heard, std::min(slice_of_sleep, limit_.remaining()),
                           internal::Sharing::processes);
    // Relaxed: a peer that sees this late rings once too often.
    shared().sleepers.fetch_sub(1, std::memory_order_relaxed);
    bell.sleeps.store(0, std::memory_order_relaxed);
  }
}

int Member::random_below(int limit) noexcept {
  return static_cast<int>(random_() % static_cast<std::uint32_t>(limit));
}

/// Throws if the wait cannot end.
void Member::look(const Awaited& awaited) {
  if (is_broken()) throw_cause();
  // Before the refusals: a rank may refuse the call and then leave.
  const bool misses = misses_rank_that_left(awaited);
  if (entering_) look_for_refusal();
  if (misses) fail_waiting(Errc::peer_lost, "a rank has left", awaited);
  if (entering_ && of_whole_) look_for_difference();
  look_at_processes(awaited);
  if (limit_.expired() && !awaited.reached(std::memory_order_acquire))
    fail_waiting(Errc::timeout, "the deadline passed", awaited);
}

/// Looks once in a slice of sleep: a call may sleep many times, and the look takes a time for each
/// rank.
void Member::look_at_processes(const Awaited& awaited) {
  const auto now = Deadline::Clock::now();
  if (now < next_look_ && !limit_.expired()) return;
  next_look_ = now + slice_of_sleep;
  if (const int dead = find_dead(); dead >= 0) {
    (void)fail(dead_error(names_, dead));
    throw_cause();
  }
  if (const auto stopped = find_stopped(awaited.peer, stopped_)) {
    (void)fail(*stopped);
    throw_cause();
  }
}

void Member::look_for_refusal() {
  // Only a hint; the refusals themselves are in the store. Acquired: they are there then.
  const auto now = shared().refusals.load(std::memory_order_acquire);
  if (now != seen_refusals_) {
    (void)agreement_.refusals().read_new();
    if (agreement_.refusals().has_read_all())
      seen_refusals_ = now;  // Otherwise the next look reads again.
  }
  if (const auto* refusal = agreement_.refusals().of(internal::call_id(names_.group(), call_->seq)))
    throw Error(internal::refused_error(names_, ops_, *call_, refusal->rank, refusal->text));
}

/// Ranks that do not enter may wait in another part, because their call of the whole group differs.
void Member::look_for_difference() {
  const auto now = Deadline::Clock::now();
  if (std::exchange(compared_, call_->seq + 1) != call_->seq + 1)
    next_comparison_ = now + time_of_comparison;
  if (now < next_comparison_) return;
  next_comparison_ = now + time_of_comparison;
  const auto& history = *names_.whole()->history;
  std::optional<internal::CallDifference> found;
  try {
    found = of_whole_->compare_calls(names_.group(), history.names(), history.take(), true);
  } catch (...) {  // Without the store or memory no difference is found.
  }
  if (!found) return;
  const auto error = internal::call_error(Errc::mismatch, names_, ops_, *call_, -1, found->text);
  if (!found->is_last) (void)fail(error);
  throw Error(error);
}

bool Member::misses_rank_that_left(const Awaited& awaited) const noexcept {
  for (int r = 0; r < size_; ++r) {
    if (!has_left(r)) continue;
    const bool missing = entering_
                             ? !has_entered(r, std::memory_order_acquire)
                             : r == awaited.peer && !awaited.reached(std::memory_order_acquire);
    if (missing) return true;
  }
  return false;
}

int Member::find_dead() const {
  if (in_one_process_) return -1;
  fmt::basic_memory_buffer<pollfd, 64> events;  // Several threads may look.
  events.append(processes_.data(), processes_.data() + processes_.size());
  if (::poll(events.data(), events.size(), 0) <= 0) return -1;
  for (std::size_t r = 0; r < events.size(); ++r)
    if (events[r].revents != 0 && !has_left(static_cast<int>(r))) return static_cast<int>(r);
  return -1;
}

std::optional<Error> Member::find_stopped(int peer, internal::StoppedProcess& stopped) const {
  const int process = process_of(peer);
  if (!stopped.is_dead(process, Deadline::Clock::now())) return std::nullopt;
  return internal::silent_error(names_, peer, dead_after_, process);
}

bool Member::has_died(int rank) const noexcept {
  auto process = processes_[static_cast<std::size_t>(rank)];
  return !in_one_process_ && ::poll(&process, 1, 0) > 0 && !has_left(rank);
}

// --- Entry ---

void Member::begin(std::span<const Op> ops, const Call& call) {
  ops_ = ops;
  call_ = &call;
  limit_ = {};
  entering_ = false;
  if (is_broken()) throw_cause();
}

/// Waits until no peer reads this rank's last entry with this parity. Usually that is known: all
/// ranks entered the call in between, so they left the call before it.
void Member::await_reusable_entry() {
  if (entered_ == 0 || (call_->seq + 1 - entered_) % 2 != 0) return;
  await_all(&SharedRank::left, entered_);
}

void Member::publish_entry(std::span<const std::byte> data) {
  if (is_broken()) throw_cause();
  await_reusable_entry();
  auto& entries = mine().entries;
  auto& entry = entries[call_->seq % 2];
  entry.fingerprint = call_->fingerprint;
  if (!data.empty()) std::memcpy(entry.data.data(), data.data(), data.size());
  publish(entry.call, call_->seq + 1);
  entering_ = true;
  // Most peers have read the entry of the call before, and read nothing else of its line.
  internal::expect_write(&entries[(call_->seq + 1) % 2]);
}

void Member::await_entries(bool first_filled) {
  await_each([&](int peer) {
    return Awaited{peer, of(peer).entries[call_->seq % 2].call, call_->seq + 1, true};
  });
  entering_ = false;
  // Not before: a rank may give up a call that another rank refused, and enter a later one.
  bool equal = true;
  for (int r = 0; r < size_; ++r)
    equal = equal && of(r).entries[call_->seq % 2].fingerprint == call_->fingerprint;
  entered_ = call_->seq + 1;
  // All ranks have left the calls before.
  known_taken_ = position_;
  known_filled_ = position_ + (first_filled ? 1 : 0);
  if (!equal) compare();
}

/// All ranks have entered, and their calls differ: each describes its own to the others.
void Member::compare() {
  auto& own = mine();
  own.record = internal::Record::of(ops_, *call_);
  publish(own.described, call_->seq + 1);
  await_all(&SharedRank::described, call_->seq + 1);
  std::vector<internal::Record> records;
  for (int r = 0; r < size_; ++r) {
    records.push_back(of(r).record);
    records.back().refused = 0;
  }
  auto error = internal::compare(names_, ops_, *call_, records);
  end();
  if (error) throw Error(*error);
  internal::failf(Errc::backend, "the fingerprints of call #{} changed", call_->seq);
}

const std::byte* Member::entry_data(int rank) const noexcept {
  return of(rank).entries[call_->seq % 2].data.data();
}

void Member::end() noexcept {
  notify_of_stores();
  // Release: this rank has read the entries of the call. A peer that waits for this sleeps for at
  // most a slice; it is rare.
  mine().left.store(entered_, std::memory_order_release);
}

bool Member::has_entered(int rank, std::memory_order order) const noexcept {
  return rank == rank_ || of(rank).entries[call_->seq % 2].call.load(order) == call_->seq + 1;
}

// --- Rounds ---

std::byte* Member::slot(int rank, std::uint64_t round) const noexcept {
  const bool exchanged = size_ == 2 && round / Layout::slots % 2 != 0;
  const auto place = static_cast<std::size_t>(exchanged ? 1 - rank : rank);
  return made_.memory.at(layout().slot(place, round % Layout::slots));
}

std::uint64_t Member::first_round_of(int root) const noexcept {
  if (size_ != 2 || root == last_root_) return position_;
  constexpr auto period = 2 * Layout::slots;  // Of slot().
  const auto same_memory = (last_first_ + Layout::slots) % period;
  return position_ + (same_memory + period - position_ % period) % period;
}

SlotPrefix& Member::prefix(int rank, std::uint64_t round) const noexcept {
  return *reinterpret_cast<SlotPrefix*>(slot(rank, round) - Layout::slot_prefix);
}

void Member::await_free(std::uint64_t round) {
  if (round < known_taken_ + Layout::slots) return;
  const auto needed = round + 1 - Layout::slots;
  await_all(&SharedRank::taken, needed);
  known_taken_ = needed;
}

void Member::await_filled(int peer, std::uint64_t round) {
  if (round < known_filled_) return;
  await({peer, of(peer).filled, round + 1});
}

void Member::await_folded(int peer, std::uint64_t round) {
  await({peer, of(peer).folded, round + 1});
}

void Member::filled(std::uint64_t round) noexcept {
  // Before the entry, the entry publishes the round. If the call is refused, a later call uses the
  // same number, which must not count as filled then.
  if (entered_ != call_->seq + 1) return;
  publish(mine().filled, round + 1);
}

void Member::folded(std::uint64_t round) noexcept {
  publish(mine().folded, round + 1);
}

void Member::taken(std::uint64_t round) noexcept {
  publish(mine().taken, round + 1);
}

// --- Failure ---

Error::Where Member::location() const {
  return internal::call_error(Errc::backend, names_, ops_, *call_, rank_, {}).where();
}

Error Member::left_error(int rank) const noexcept {
  return internal::described(Errc::peer_lost, [&, shown = names_(rank)] {
    return Error(Errc::peer_lost, fmt::format("rank {} has left the group", shown),
                 {.rank = shown});
  });
}

void Member::throw_cause() {
  const Error why = cause();
  // A peer that is lost belongs to no call: every call ends with it.
  if (why.code() == Errc::peer_lost && why.where().operation.empty())
    throw Error(internal::with_location(why, names_, ops_, *call_, rank_));
  throw Error(internal::ended_by(why, location()));
}

/// Fails the group because ranks have not entered the call, or have stopped in it.
void Member::fail_waiting(Errc code, const char* what, const Awaited& awaited) {
  std::vector<internal::Presence> ranks;  // Relaxed loads: only for the text.
  for (int r = 0; r < size_; ++r) {
    std::uint64_t last = 0;  // The number + 1.
    for (const auto& entry : of(r).entries)
      last = std::max(last, entry.call.load(std::memory_order_relaxed));
    // A rank that has stopped after its entry is missing too.
    const bool stopped = !entering_ && r == awaited.peer;
    ranks.push_back(
        {.entered = !stopped && has_entered(r, std::memory_order_relaxed),
         .left = has_left(r),
         .last = last == 0 ? "no collective yet" : fmt::format("last seen in #{}", last - 1)});
  }
  const Error error =
      internal::name_missing(internal::call_error(code, names_, ops_, *call_, -1, what), ranks,
                             internal::describe(ops_, *call_, names_), names_);
  throw Error(internal::ended_by(fail(error), error.where()));
}

void Member::fail_call(const Error& why) {
  const auto error = internal::call_error(why.code(), names_, ops_, *call_, rank_,
                                          fmt::format("rank {}: {}", names_(rank_), why.message()));
  throw Error(internal::ended_by(fail(error), error.where()));
}

void Member::fail_corrupt(int peer, std::string_view what) {
  fail_call(corrupt_error(peer, what));
}

Error Member::corrupt_error(int peer, std::string_view what) const noexcept {
  return internal::described(Errc::backend, [&, shown = names_(peer)] {
    return Error(
        Errc::backend,
        fmt::format("rank {} wrote {} into the shared memory that is not possible", shown, what),
        {.rank = shown});
  });
}

Error Member::fail(const Error& why) noexcept {
  {
    std::unique_lock lock(mutex_);
    if (failing_) {
      settled_.wait(lock, [&] { return cause_.has_value(); });
      return *cause_;
    }
    failing_ = true;
  }
  const bool first = made_.memory.break_group(rank_, why);
  const Error cause = first ? why : made_.memory.cause().value_or(why);
  wake_all();
  {
    const std::lock_guard lock(mutex_);
    cause_ = cause;
  }
  settled_.notify_all();
  if (listener_) listener_(cause);
  return cause;
}

Error Member::cause() noexcept {
  return fail(another_rank_broke_it());  // The first cause applies.
}

std::optional<Error> Member::failure() noexcept try {
  {
    const std::lock_guard lock(mutex_);
    if (cause_) return cause_;
  }
  if (is_broken()) return cause();
  if (const int dead = find_dead(); dead >= 0) return fail(dead_error(names_, dead));
  if (!checked_) return std::nullopt;
  // A call waits for the records of all ranks before it is launched.
  std::optional<Error> stopped;
  {
    const std::lock_guard lock(mutex_);
    for (int r = 0; r < size_ && !stopped; ++r)
      stopped = find_stopped(r, stopped_peers_[static_cast<std::size_t>(r)]);
  }
  if (stopped) return fail(*stopped);
  return std::nullopt;
} catch (const std::bad_alloc&) {  // The next call looks again.
  return std::nullopt;
}

void Member::refuse(std::span<const Op> ops, const Call& call, const Error& why) noexcept {
  try {
    agreement_.refusals().add({internal::call_id(names_.group(), call.seq), rank_,
                               internal::refusal_text(ops, call, why)});
  } catch (...) {  // The peers wait for the call, and cannot be told of its refusal.
    (void)fail(internal::to_error(std::current_exception()));
  }
  shared().refusals.fetch_add(1, std::memory_order_release);  // The refusal is in the store.
  wake_all();
}

void Member::leave() noexcept {
  // After all other words of this rank (release): a peer that sees it has seen them.
  mine().gone.store(1, std::memory_order_release);
  wake_all();
}

}  // namespace tutti::backend::memory
