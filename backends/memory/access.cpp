#include <chrono>
#include <thread>

#include "member.hpp"

// The parts of Member by which ranks access each other's arrays.

namespace tutti::backend::memory {
namespace {

using namespace std::chrono_literals;

/// A rank ends its access of at most read_piece bytes, or when it gets a core again.
constexpr std::chrono::nanoseconds longest_access = 10s;
constexpr std::chrono::nanoseconds longest_stop = 200ms;

}  // namespace

std::uint32_t Member::agree(std::uint32_t own) {
  // A peer writes to the same word only after it has seen this rank's next agreement, so after the
  // loads below.
  const auto word = ++agreements_ % 2 != 0 ? &SharedRank::agreed : &SharedRank::agreed_even;
  const auto begun = agreements_ << agreed_bits;
  publish(mine().*word, begun + own);
  await_all(word, begun);
  auto all = own;
  // Relaxed: acquired by the wait.
  for (int r = 0; r < size_; ++r)
    all &= static_cast<std::uint32_t>((of(r).*word).load(std::memory_order_relaxed));
  return all;
}

// This rank (A) stores `accesses` and then loads `broken`. A rank whose call fails (B) loads or
// stores `broken` and then loads `accesses`. All are sequentially consistent, so either A sees that
// the group is broken and accesses nothing, or B sees the access and waits for its end.
void Member::begin_access() {
  mine().accesses.store(1, std::memory_order_seq_cst);
  if (shared().broken.load(std::memory_order_seq_cst) == 0) return;
  end_access();
  throw_cause();
}

void Member::end_access() noexcept {
  // Releases the reads and writes of the arrays to a rank that waits for the end of them.
  mine().accesses.store(0, std::memory_order_release);
}

bool Member::await_read(bool complete) {
  // A process that died after it had read leaves its number to another one.
  const bool all = agree(complete && find_dead() < 0 ? 1 : 0) != 0;
  ++moved_;
  end_moved();
  return all;
}

void Member::await_moved() {
  publish(mine().moved, ++moved_);  // Releases the data to the peers.
  await_all(&SharedRank::moved, moved_);
  end_moved();
}

void Member::end_moved() {
  notify_of_stores();
  // After the store: a peer that failed and changed its arrays while this rank read them had broken
  // the group before.
  if (shared().broken.load(std::memory_order_seq_cst) != 0) throw_cause();
}

bool Member::await_no_access() noexcept {
  (void)shared().broken.load(std::memory_order_seq_cst);  // See begin_access().
  bool ended = true;
  for (int r = 0; r < size_; ++r)
    if (r != rank_) ended = await_end_of_access(r) && ended;
  return ended;
}

bool Member::await_end_of_access(int rank) noexcept {
  auto process = processes_[static_cast<std::size_t>(rank)];
  const auto limit = Deadline::after(longest_access);
  auto stopped_until = Deadline::after(longest_stop);
  while (of(rank).accesses.load(std::memory_order_seq_cst) != 0) {
    std::this_thread::sleep_for(20us);
    if (process.fd < 0) continue;  // A thread of this process always ends its access.
    if (::poll(&process, 1, 0) > 0) return true;  // Has died.
    if (limit.expired()) return false;
    if (!stopped_until.expired()) continue;
    if (internal::is_stopped(made_.ids[static_cast<std::size_t>(rank)])) return false;
    stopped_until = Deadline::after(longest_stop);
  }
  return true;
}

}  // namespace tutti::backend::memory
