#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "backend/call_history.hpp"
#include "backend/heartbeats.hpp"
#include "communicator.hpp"
#include "failure.hpp"
#include "launcher.hpp"
#include "point_to_point.hpp"
#include "work.hpp"

namespace tutti::backend::nccl {

/// The thread of a group. Advances and ends its calls, enforces their deadlines, polls for failures
/// of NCCL and of the peers, and aborts the group when it has broken.
///
/// Called from any thread. `mutex_` guards pending_, has_graphs_, is_compared_, drained_ and stop_;
/// no other lock is taken under it. heartbeats_, the moments and gone_since_ belong to the thread.
class Watcher {
 public:
  /// The arguments outlive it.
  Watcher(std::shared_ptr<Gpu> gpu, const BackendInit& init,
          std::shared_ptr<Communicator> communicator, Launcher& launcher, PointToPoint& messages,
          Failure& failure, internal::CallHistory& history);
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  /// Starts the thread, which keeps `owner` alive until the thread ends. `owner` contains this
  /// object. @throws Error resource_exhausted, and errors of the store.
  void start(std::shared_ptr<void> owner);
  /// Ends the call when it has run or when the group has broken.
  void watch(const std::shared_ptr<EventState>& state);
  /// From now on, polls NCCL and the peers even when no call is pending: graph launches are
  /// invisible to the library.
  void watch_graphs();
  /// Wakes the thread because the group has broken.
  void wake() noexcept;
  /// Waits for the calls in flight until their deadlines, then ends the thread. On that thread
  /// itself it only tells the thread to end. Returns false when stop() was called before.
  bool stop() noexcept;

  /// All communicators of the group.
  Communicators communicators() const;

 private:
  using Clock = std::chrono::steady_clock;
  using States = std::vector<std::shared_ptr<EventState>>;

  void work();
  bool await_work(States& states);
  bool tick(const States& states);
  void look_at_graphs() noexcept;
  void compare_calls(Clock::time_point now) noexcept;
  void look_at_peers(const States& states, Clock::time_point now);
  void look_at_beats(const States& states, Clock::time_point now);
  void drain() noexcept;
  bool await_idle(Deadline limit) noexcept;

  std::shared_ptr<Gpu> gpu_;
  const BackendInit& init_;
  std::shared_ptr<Communicator> communicator_;
  Launcher& launcher_;
  PointToPoint& messages_;
  Failure& failure_;
  internal::CallHistory& history_;

  std::mutex mutex_;
  std::condition_variable changed_;
  States pending_;
  bool has_graphs_ = false;
  bool is_compared_ = true;  // The calls so far, with those of the peers.
  bool drained_ = false;     // The group is broken and no operation runs any more.
  bool stop_ = false;

  std::optional<internal::Heartbeats> heartbeats_;  // Set by start().
  Clock::time_point next_look_{};
  Clock::time_point next_comparison_{};
  bool has_changed_ = false;  // Calls have begun since the last comparison.
  Clock::time_point next_look_at_graphs_{};
  Clock::time_point next_look_at_beats_{};
  // When a departed rank was first seen to have left.
  std::map<int, Clock::time_point> gone_since_;
  std::thread thread_;
};

}  // namespace tutti::backend::nccl
