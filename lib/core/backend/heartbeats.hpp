#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include <tutti/backend/backend_table.hpp>
#include <tutti/error.hpp>

#include "backend/group_names.hpp"

namespace tutti::internal {

/// True if a signal or a debugger has stopped the process, which is one of this host.
bool is_stopped(int process) noexcept;

/// The error of a rank that has been silent for `time`. `process`: of that rank, if it is known to
/// be stopped; 0: it is not.
Error silent_error(const GroupNames& names, int rank, std::chrono::nanoseconds time, int process);

/// The beats by which the processes of a group know that each other's threads run. Every rank
/// changes a key of its own ten times in `dead_after`. A rank that waits reads the keys of the
/// ranks that it waits for: one whose key stays the same for `dead_after` is dead. The time is
/// counted while the reader itself runs, so a reader that was stopped together with its peer, or
/// starved, raises no false alarm. A slow call of the program delays no beat.
///
/// Takes no round trips if BackendInit::dead_after is 0, if the ranks are threads of one process,
/// or if there is one rank. Otherwise two for each beat, and while the rank waits one for each
/// awaited rank, twice as often; of many 32 in turn, or a fifth as long as that takes a tenth of
/// the time. Called from one thread, which watches the connections.
class Heartbeats {
 public:
  using Clock = std::chrono::steady_clock;

  /// Beats once, after the group has connected: a rank that has never beaten is not judged.
  /// @throws Error of the store, and of host_identity().
  explicit Heartbeats(const BackendInit& init);

  /// False if look() does nothing.
  bool is_on() const noexcept { return dead_after_.count() > 0; }
  /// The longest time between two calls of look().
  std::chrono::nanoseconds pause() const noexcept { return interval_ / 2; }

  /// Beats and reads the beats of the `awaited` ranks, when it is time to. Returns the error of a
  /// rank that is dead, or of a store that has not answered for as long while this rank waited.
  /// Logs a rank that is silent for 3/10 of that time, once. Blocks for about 0.5 s if a TCP store
  /// does not answer, and once for twice as long if it stops during the call. Judges no rank while
  /// the store throws. @throws std::bad_alloc
  std::optional<Error> look(Clock::time_point now, std::span<const int> awaited);

  /// Asks the store. False if it does not answer, so that a write would block for its timeout.
  /// True if it throws at once: its process has ended.
  bool ask_store() noexcept;
  /// The error of a store that has not answered for `dead_after`, while this rank waited.
  std::optional<Error> judge_store(std::span<const int> awaited);
  /// The answer to the last question, by look() or ask_store().
  bool store_answers() const noexcept { return store_answers_; }

 private:
  struct Peer {
    std::string beat{};                  // The last one; empty: not read yet.
    std::chrono::nanoseconds silence{};  // Since that beat.
    std::chrono::nanoseconds looked{};   // The time_ of the last look.
    bool is_suspected = false;
  };

  void beat();
  std::optional<Error> look_at_peers(Clock::time_point now, std::span<const int> awaited);
  std::optional<Error> judge(int rank, Peer& peer);
  /// The process of a rank, if it is one of this host and is stopped; otherwise 0.
  int stopped_process(const std::string& beat) const;
  bool has_left(int rank);
  void log(std::string_view text) const noexcept;

  GroupNames names_;
  int rank_;
  Logger logger_;
  std::shared_ptr<Store> store_;
  std::chrono::nanoseconds dead_after_{};  // 0: off.
  std::chrono::nanoseconds interval_{};
  std::string process_;  // The end of every beat of this rank.

  std::uint64_t count_ = 0;
  Clock::time_point next_beat_{};
  Clock::time_point next_read_{};
  Clock::time_point looked_{};       // At any peer.
  std::chrono::nanoseconds time_{};  // Total time during which this rank looked at peers.
  bool store_answers_ = true;
  Clock::time_point asked_{};  // The end of the last question to the store.
  std::chrono::nanoseconds store_silence_{};
  std::map<int, Peer> peers_;
};

/// Tells whether a process of this host, for which a rank waits, has been stopped for `dead_after`.
/// From one thread.
class StoppedProcess {
 public:
  using Clock = std::chrono::steady_clock;

  /// `dead_after` 0: never.
  explicit StoppedProcess(std::chrono::nanoseconds dead_after) noexcept
      : dead_after_(dead_after), pause_(dead_after / 20) {}
  /// Called again and again while the rank waits. Looks at the process at most 20 times in
  /// `dead_after`. True if it was stopped at each look for that time, of which the time between two
  /// looks counts for a fifth at most.
  bool is_dead(int process, Clock::time_point now) noexcept;

 private:
  std::chrono::nanoseconds dead_after_;
  std::chrono::nanoseconds pause_;
  int process_ = 0;
  Clock::time_point looked_{};
  bool was_stopped_ = false;
  std::chrono::nanoseconds stopped_{};
};

}  // namespace tutti::internal
