#include "links.hpp"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace tutti::backend::mesh {
namespace {

using namespace std::chrono_literals;

/// The longest sleep of a waiting thread between two looks at its deadline and its flag.
constexpr auto slice = 20ms;

}  // namespace

void Links::Lock::take() {
  links_.wanting_.fetch_add(1);
  lock_.lock();
  links_.wanting_.fetch_sub(1);
}

void Links::Lock::yield() {
  const auto is_wanted = [&] { return links_.wanting_.load(std::memory_order_relaxed) != 0; };
  lock_.unlock();
  for (int i = 0; i < 100 && is_wanted(); ++i) ::sched_yield();
  // On a busy machine the other thread runs only when this one sleeps.
  for (int i = 0; i < 100 && is_wanted(); ++i) std::this_thread::sleep_for(50us);
  take();
}

Links::Outcome Links::wait(Request& request, Deadline limit, const std::atomic<bool>& cancelled) {
  Lock lock(*this);
  const auto is_cancelled = [&] { return cancelled.load(std::memory_order_relaxed); };
  const auto goes_on = [&] {
    return !request.ended && !closing_ && !is_cancelled() && !is_lost(request.peer) &&
           !limit.expired();
  };
  for (;;) {
    if (request.ended) return Outcome::ended;
    if (closing_) return Outcome::closed;
    if (is_cancelled()) return Outcome::cancelled;
    if (is_lost(request.peer)) {  // What it had sent has arrived, but is perhaps not yet received.
      if (!request.sends) drain(request.peer);
      return request.ended ? Outcome::ended : Outcome::lost;
    }
    if (!progressing_) {
      progressing_ = true;
      (void)polling_->until([&] {
        do {
          lock.give_way();
          if (closing_) return true;
        } while (progress() && goes_on());
        return request.ended || is_cancelled() || is_lost(request.peer);
      });
      if (goes_on()) {
        ++asleep_;
        waiter_asleep_ = true;
        sleep(lock, false, true,
              std::chrono::ceil<std::chrono::milliseconds>(
                  std::min<std::chrono::nanoseconds>(limit.remaining(), slice)));
        waiter_asleep_ = false;
        if (!closing_ && std::exchange(woken_, false)) wake_.clear();
        --asleep_;
      }
      progressing_ = false;
      if (sleeping_ > 0) changed_.notify_all();
      if (has_lines_) {
        log_lines(lock.get());
        lock.take();
      }
    } else {
      // The other thread may sleep without knowing of this request.
      while (waiter_asleep_ && goes_on() && progress()) lock.give_way();
      if (goes_on() && progressing_) {
        ++sleeping_;
        changed_.wait_until(lock.get(), std::min(limit.time(), Deadline::after(slice).time()));
        --sleeping_;
      }
    }
    if (!request.ended && limit.expired()) return Outcome::late;
  }
}

void Links::alert() noexcept {
  Lock lock(*this);
  if (closing_) return;
  if (progress() || !alerted_) event_.set();
  alerted_ = true;
}

void Links::attend(std::chrono::milliseconds time) {
  const auto limit = Deadline::after(time);
  Lock lock(*this);
  while (!closing_) {
    while (!closing_ && (!progressing_ || waiter_asleep_) && !limit.expired() && progress())
      lock.give_way();
    if (closing_) return;  // While it gave way.
    serve();
    const auto rest = std::chrono::ceil<std::chrono::milliseconds>(limit.remaining());
    if (rest <= 0ms) return;
    alerted_ = alerted_ && (pending_ > 0 || has_more());
    idle_ = true;
    ++asleep_;
    sleep(lock, true, alerted_ && !progressing_,
          alerted_ && progressing_ ? std::min<std::chrono::milliseconds>(rest, 1ms) : rest);
    --asleep_;
    if (event_.clear()) return;
  }
}

bool Links::stop(Lock& lock) noexcept {
  if (std::exchange(closing_, true)) {
    changed_.wait(lock.get(), [&] { return is_closed_; });
    return false;
  }
  changed_.notify_all();
  event_.set();
  woken_ = true;
  wake_.set();
  ++sleeping_;
  while (progressing_ || asleep_ > 0) changed_.wait_for(lock.get(), 1ms);
  --sleeping_;
  return true;
}

void Links::set_closed() noexcept {
  is_closed_ = true;
  changed_.notify_all();
}

}  // namespace tutti::backend::mesh
