#include "shared_state.hpp"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "backend/record.hpp"
#include "values/fail.hpp"
#include "values/group_errors.hpp"

namespace tutti::backend::local {

using internal::Sharing;

const Op& Entered::collective(int rank, std::size_t k) const {
  for (const auto& op : of(rank).ops)
    if (!is_point_to_point(op.kind) && k-- == 0) return op;
  fail(Errc::backend, "local: no such operation in the call");
}

std::size_t Entered::collectives() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(of(0).ops, [](const Op& op) { return !is_point_to_point(op.kind); }));
}

SharedState::SharedState(internal::GroupNames names, int size)
    : names_(std::move(names)),
      size_(size),
      ranks_(static_cast<std::size_t>(size)),
      polling_(static_cast<std::size_t>(size), std::thread::hardware_concurrency()),
      mailbox_(names_, size, [this](const Error& cause) { break_with(cause); }) {}

void SharedState::join(int rank, Deadline limit) {
  std::unique_lock lock(mutex_);
  if (of(rank).joined)
    internal::failf(Errc::invalid_argument,
                    "group '{}': rank {} has already joined; every rank joins once", names_.group(),
                    names_(rank));
  of(rank).joined = true;
  ++members_;
  joined_.notify_all();
  const auto complete = [&] { return members_ == size_ || cause_.has_value(); };
  if (limit.is_none())
    joined_.wait(lock, complete);
  else
    joined_.wait_until(lock, limit.time(), complete);
  if (cause_) throw Error(*cause_);
  if (members_ == size_) return;
  std::vector<int> absent;
  for (int r = 0; r < size_; ++r)
    if (!of(r).joined) absent.push_back(r);
  break_locked(Error(Errc::timeout,
                     fmt::format("group '{}': {} of {} ranks joined; missing: {}", names_.group(),
                                 members_, size_, internal::list_ranks(absent, names_))));
  joined_.notify_all();
  throw Error(*cause_);
}

// --- Waiting ---
//
// A rank that is about to sleep (A) counts itself and then loads the word again. A rank that stores
// the word (B) has a fence after that, and then loads the count. All but the word's store are
// sequentially consistent, and the fence orders that one too, so either A sees the new word or B
// sees that A sleeps.

void SharedState::notify(int rank) noexcept {
  internal::full_fence();
  if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
  for (int r = 0; r < size_; ++r)
    if (of(r).sleeps.load(std::memory_order_seq_cst) == static_cast<std::uint32_t>(rank) + 1)
      ring(r);
}

/// Polls until ready(), after a store for which peers may sleep. The fence waits until the store
/// has reached the cache, which takes as long as the peers' answer, so most waits end before it.
template <typename Ready>
bool SharedState::poll(int rank, const Ready& ready) noexcept {
  // Relaxed: only to find most sleepers early.
  if (sleepers_.load(std::memory_order_relaxed) != 0) notify(rank);
  const bool soon = polling_.shortly(ready);
  notify(rank);
  return soon || polling_.longer(ready);
}

void SharedState::ring(int rank) noexcept {
  of(rank).bell.fetch_add(1, std::memory_order_release);  // The sleeper's comparison sees it.
  internal::futex_wake(of(rank).bell, Sharing::threads);
}

void SharedState::ring_all() noexcept {
  for (int r = 0; r < size_; ++r) ring(r);
}

/// Sleeps until `peer` has stored a word, unless ready(). `heard`: the bell, read before the last
/// look at anything else that ends the wait.
template <typename Ready>
void SharedState::sleep(int rank, int peer, std::uint32_t heard, std::chrono::nanoseconds time,
                        const Ready& ready) noexcept {
  auto& own = of(rank);
  own.sleeps.store(static_cast<std::uint32_t>(peer) + 1, std::memory_order_seq_cst);
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  if (!ready()) internal::futex_wait(own.bell, heard, time, Sharing::threads);
  // Relaxed: a peer that sees this late rings once too often.
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
  own.sleeps.store(0, std::memory_order_relaxed);
}

// --- Entry ---
//
// A rank may read the arrays of its peers only if none of them gives up the call. So ranks agree
// whether the call runs. It runs if all ranks have entered it and broken_ was false after that; a
// rank that has seen both takes no lock. A rank that breaks the group, under the lock, stores
// broken_ and then reads all entries, all sequentially consistent: if an entry is missing, it is
// stored after broken_. The rank that stores it has a fence before it loads broken_, and its peers
// load the entry and broken_ sequentially consistently, so every rank that sees it sees broken_
// too, and no rank runs the call. If none is missing, running_ tells the ranks that find broken_
// that the call runs.
//
// An entry is written again when all ranks have entered the call after its own, so they have left
// its own. A call that a rank refused does not count: no rank reads its entries.

bool SharedState::has_entered(int rank, std::size_t parity, std::uint64_t number) const noexcept {
  return of(rank).entries[parity].number.load(std::memory_order_seq_cst) == number;
}

Entered SharedState::enter(int rank, std::span<const Op> ops, const Call& call,
                           std::optional<std::span<const std::byte>> array) {
  // Acquires: the cause is there.
  if (broken_.load(std::memory_order_acquire)) throw internal::broken(*cause());
  auto& own = of(rank);
  const std::size_t parity = own.entered % 2;
  auto& entry = own.entries[parity];
  entry.fingerprint = call.fingerprint;
  entry.ops = ops;
  entry.call = &call;
  if (array && !array->empty()) std::memcpy(entry.data.data(), array->data(), array->size());
  // Publishes the entry; ordered before the load of broken_ by the fence of poll().
  entry.number.store(call.seq + 1, std::memory_order_release);
  // The peers have read the entry of the call before, and read nothing else of its lines.
  internal::expect_write(&own.entries[1 - parity]);
  int next = 0;
  const bool all = poll(rank, [&] {
    while (next < size_ && has_entered(next, parity, call.seq + 1)) ++next;
    return next == size_;
  });
  if (!all || broken_.load(std::memory_order_seq_cst)) await_asleep(rank, next % size_, ops, call);
  ++own.entered;
  const Entered entered(ranks_, parity, array.has_value());
  if (const auto error = compare(entered, rank)) {
    (void)finish_step(rank);  // Peers read this rank's operations.
    throw Error(*error);
  }
  return entered;
}

/// Waits until the call runs. `peer`: a rank that may be missing.
void SharedState::await_asleep(int rank, int peer, std::span<const Op> ops, const Call& call) {
  const auto limit = call.limit();
  const std::size_t parity = of(rank).entered % 2;
  const auto has = [&](int r) { return has_entered(r, parity, call.seq + 1); };
  for (;;) {
    const auto heard = of(rank).bell.load(std::memory_order_acquire);
    std::optional<Error> mine;
    {
      const std::lock_guard lock(mutex_);
      if (const auto* refusal = refusal_of(call.seq)) {
        const Error error = *refusal;
        end_refused(call.seq);
        throw Error(error);
      }
      if (cause_) {
        if (running_ == call.seq + 1) return;
        throw Error(*cause_);
      }
      bool left = false;
      int present = 0;
      for (int r = 0; r < size_; ++r) {
        if (has(r)) {
          ++present;
          continue;
        }
        peer = r;
        left = left || of(r).gone;
      }
      if (present == size_) return;
      if (left || limit.expired()) {
        mine = left ? missing(Errc::peer_lost, parity, ops, call, "a rank has left")
                    : missing(Errc::timeout, parity, ops, call, "the deadline passed");
        break_locked(*mine);
      }
    }
    if (mine)
      announce(*mine);
    else
      sleep(rank, peer, heard, limit.remaining(), [&] { return has(peer); });
  }
}

/// The error of a call whose ranks differ; the same on all ranks.
std::optional<Error> SharedState::compare(const Entered& entered, int rank) const {
  const auto& own = entered.of(rank);
  bool equal = true;
  for (int r = 0; r < size_; ++r) equal = equal && entered.of(r).fingerprint == own.fingerprint;
  if (equal &&
      std::ranges::none_of(own.ops, [](const Op& op) { return op.kind == Operation::all_to_all; }))
    return std::nullopt;
  const auto& first = entered.of(0);
  if (!equal) {
    std::vector<internal::Record> records;
    for (int r = 0; r < size_; ++r)
      records.push_back(internal::Record::of(entered.of(r).ops, *entered.of(r).call));
    return internal::compare(names_, first.ops, *first.call, records);
  }
  for (std::size_t k = 0; k < entered.collectives(); ++k) {
    if (entered.collective(0, k).kind != Operation::all_to_all) continue;
    auto error = internal::compare_rows(
        names_, first.ops, *first.call, size_,
        [&](int from, int to) { return entered.collective(from, k).send_rows[to]; },
        [&](int from, int to) { return entered.collective(to, k).rows[from]; });
    if (error) return error;
  }
  return std::nullopt;
}

Error SharedState::missing(Errc code, std::size_t parity, std::span<const Op> ops, const Call& call,
                           const char* what) const {
  std::vector<internal::Presence> ranks;
  for (int r = 0; r < size_; ++r) {
    std::uint64_t last = of(r).refused;      // The number + 1.
    for (const auto& entry : of(r).entries)  // Relaxed: only for the text.
      last = std::max(last, entry.number.load(std::memory_order_relaxed));
    ranks.push_back(
        {.entered = has_entered(r, parity, call.seq + 1),
         .left = of(r).gone,
         .last = last == 0 ? "no collective yet" : fmt::format("last seen in #{}", last - 1)});
  }
  return internal::name_missing(internal::call_error(code, names_, ops, call, -1, what), ranks,
                                internal::describe(ops, call, names_), names_);
}

// --- Steps ---

std::optional<Error> SharedState::finish_step(int rank) noexcept {
  auto& own = of(rank);
  const auto step = ++own.steps;
  own.finished.store(step, std::memory_order_release);  // Publishes the results.
  const auto has = [&](int r) { return of(r).finished.load(std::memory_order_seq_cst) >= step; };
  int next = 0;
  const auto all = [&] {
    while (next < size_ && has(next)) ++next;
    return next == size_;
  };
  for (bool ended = poll(rank, all); !ended; ended = all()) {
    const auto heard = own.bell.load(std::memory_order_acquire);
    sleep(rank, next, heard, Deadline::none().remaining(), [&] { return has(next); });
  }
  // Relaxed: stored before the failing rank finished the step.
  if (failed_step_.load(std::memory_order_relaxed) != step) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return step_error_;
}

void SharedState::fail_step(int rank, std::span<const Op> ops, const Call& call, const Error& why) {
  const auto error = internal::call_error(why.code(), names_, ops, call, rank,
                                          fmt::format("rank {}: {}", names_(rank), why.message()));
  {
    const std::lock_guard lock(mutex_);
    if (!step_error_) {
      step_error_ = error;
      failed_step_.store(of(rank).steps + 1, std::memory_order_relaxed);
    }
  }
  break_with(error);
}

// --- Failure ---

void SharedState::refuse(int rank, std::span<const Op> ops, const Call& call,
                         const Error& why) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (cause_) return;
    of(rank).refused = std::max(of(rank).refused, call.seq + 1);
    if (refusal_of(call.seq) == nullptr)
      refused_.push_back(
          {call.seq,
           internal::refused_error(names_, ops, call, rank, internal::refusal_text(ops, call, why)),
           0});
    end_refused(call.seq);
  }
  ring_all();
}

const Error* SharedState::refusal_of(std::uint64_t seq) const noexcept {
  const auto it = std::ranges::find(refused_, seq, &Refused::seq);
  return it == refused_.end() ? nullptr : &it->error;
}

void SharedState::end_refused(std::uint64_t seq) noexcept {
  const auto it = std::ranges::find(refused_, seq, &Refused::seq);
  if (++it->ended == size_) refused_.erase(it);
}

void SharedState::leave(int rank) noexcept {
  {
    const std::lock_guard lock(mutex_);
    of(rank).gone = true;
  }
  ring_all();
  mailbox_.leave(rank);
}

void SharedState::break_locked(const Error& cause) noexcept {
  if (cause_) return;
  cause_ = cause;
  // Before the entries are read: see "Entry".
  broken_.store(true, std::memory_order_seq_cst);
  for (const std::size_t parity : {0U, 1U}) {
    const auto number = of(0).entries[parity].number.load(std::memory_order_seq_cst);
    bool all = true;
    for (int r = 1; r < size_; ++r) all = all && has_entered(r, parity, number);
    if (all) running_ = std::max(running_, number);
  }
}

/// Ends the waits of a group that break_locked() has broken.
void SharedState::announce(const Error& cause) noexcept {
  joined_.notify_all();
  ring_all();
  mailbox_.fail(cause);
}

void SharedState::break_with(const Error& cause) noexcept {
  {
    const std::lock_guard lock(mutex_);
    break_locked(cause);
  }
  announce(cause);
}

std::optional<Error> SharedState::cause() const {
  const std::lock_guard lock(mutex_);
  return cause_;
}

}  // namespace tutti::backend::local
