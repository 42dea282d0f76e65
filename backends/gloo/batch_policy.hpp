#pragma once

#include <sched.h>

namespace tutti::backend::gloo {

/// While this object lives, this thread has the scheduling policy SCHED_BATCH. A thread started
/// meanwhile inherits it and keeps it. A SCHED_BATCH thread does not preempt another one when it
/// wakes up. Gloo's I/O thread otherwise preempts the thread that holds a pair's lock, and then
/// spins for that lock. Has no effect where the kernel refuses the policy, or if the program has
/// given the thread another policy than SCHED_OTHER.
class BatchPolicy {
 public:
  explicit BatchPolicy(bool wanted) noexcept {
    const int before = ::sched_getscheduler(0);
    // An unprivileged thread could not return to a real-time policy.
    if (!wanted || before < 0 || (before & ~SCHED_RESET_ON_FORK) != SCHED_OTHER) return;
    if (set(SCHED_BATCH | (before & SCHED_RESET_ON_FORK))) before_ = before;
  }
  ~BatchPolicy() {
    if (before_ >= 0) set(before_);
  }
  BatchPolicy(const BatchPolicy&) = delete;
  BatchPolicy& operator=(const BatchPolicy&) = delete;

 private:
  static bool set(int policy) noexcept {
    const sched_param none{};
    return ::sched_setscheduler(0, policy, &none) == 0;
  }

  int before_ = -1;  // -1: the policy was not changed.
};

}  // namespace tutti::backend::gloo
