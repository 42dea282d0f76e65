#include <algorithm>
#include <chrono>
#include <thread>

#include "member.hpp"

// The parts of Member by which ranks access each other's arrays.

namespace tutti::backend::shm {
namespace {

using namespace std::chrono_literals;

/// A rank that is not stopped ends its access within microseconds, or when it gets a core again.
constexpr std::chrono::nanoseconds longest_access = 200ms;

}  // namespace

bool Member::agree(bool own) {
  const auto begun = 2 * ++agreements_;
  mine().agreed.store(begun + (own ? 1 : 0), std::memory_order_seq_cst);  // See notify().
  notify();
  await_all(&SharedRank::agreed, begun);
  bool all = own;
  // A peer writes the next value only after this rank's entry to another call. Relaxed: acquired by
  // the wait.
  for (int r = 0; r < size_; ++r)
    all = all && of(r).agreed.load(std::memory_order_relaxed) % 2 == 1;
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

void Member::await_moved() {
  // Releases the data to the peers; sequentially consistent for notify().
  mine().moved.store(++moved_, std::memory_order_seq_cst);
  notify();
  await_all(&SharedRank::moved, moved_);
  // After the store: a peer that failed and changed its arrays while this rank read them had broken
  // the group before.
  if (shared().broken.load(std::memory_order_seq_cst) != 0) throw_cause();
}

bool Member::await_no_access() noexcept {
  (void)shared().broken.load(std::memory_order_seq_cst);  // See begin_access().
  const auto limit = Deadline::after(longest_access);
  for (int r = 0; r < size_; ++r) {
    auto process = processes_[static_cast<std::size_t>(r)];
    while (r != rank_ && of(r).accesses.load(std::memory_order_seq_cst) != 0) {
      if (process.fd >= 0 && ::poll(&process, 1, 0) > 0) break;  // Has died.
      // A thread of this process always ends its access.
      if (process.fd >= 0 && limit.expired()) return false;
      std::this_thread::sleep_for(20us);
    }
  }
  return true;
}

}  // namespace tutti::backend::shm
