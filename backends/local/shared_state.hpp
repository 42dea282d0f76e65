#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <tutti/backend/backend.hpp>

#include "group/mailbox.hpp"

namespace tutti::backend::local {

/// One collective launch: where the ranks that make it show each other their operations.
struct Round {
  enum class State : std::uint8_t { open, running, failed };

  struct Slot {
    std::span<const Op> ops{};
    const Call* call = nullptr;  // Null until the rank is here.
  };

  std::uint64_t seq = 0;
  std::vector<Slot> slots;     // By rank.
  int arrived = 0;             // Ranks that came or refused.
  std::optional<Error> error;  // Why it failed, the same for everybody.
  // Ranks look at these while others write what is above.
  alignas(64) std::atomic<State> state{State::open};
  alignas(64) std::atomic<int> finished{0};  // Steps that ranks have ended, over all operations.
  std::atomic<int> left{0};

  /// Operation number `k` of the collectives of a rank; point-to-point among them is not counted.
  const Op& collective(int rank, std::size_t k) const;
  std::size_t collectives() const;
};

/// Where the ranks of one group meet. All functions from any rank's threads.
class SharedState {
 public:
  SharedState(std::string group, int size);

  int size() const noexcept { return size_; }
  const std::string& group() const noexcept { return group_; }

  /// @throws Error invalid_argument when the rank is taken, timeout when others are missing.
  void join(int rank, Deadline limit);
  /// The rank's group object is gone: calls that need it fail.
  void leave(int rank) noexcept;

  /// Shows this rank's operations and waits for the others'. @throws Error: the round's, or the
  /// cause that broke the group. On return the round is running: all ranks are in it.
  Round& enter(int rank, std::span<const Op> ops, const Call& call);
  /// Ends step `step` of the round and waits until all ranks have: its peers are running, none
  /// of them waits for anything else, so this has no deadline.
  void finish_step(Round& round, int step) noexcept;
  /// This rank's share of the running step failed; all ranks find round.error behind the step.
  void fail_round(Round& round, int rank, std::span<const Op> ops, const Call& call,
                  const Error& why);
  void leave_round(Round& round) noexcept;
  void refuse_round(int rank, std::span<const Op> ops, const Call& call, const Error& why) noexcept;

  /// Sends and receives. Valid as long as this object.
  internal::Mailbox& mailbox() noexcept { return mailbox_; }

  /// The first cause counts. Ends every open round and message.
  void break_with(const Error& cause) noexcept;
  std::optional<Error> cause() const;

 private:
  std::unique_lock<std::mutex> acquire() const;
  Round& find(std::uint64_t seq);                    // Under the lock.
  void depart(Round& round) noexcept;                // Under the lock.
  void recycle(Round& round) noexcept;               // Under the lock.
  std::optional<Error> compare(const Round& round);  // Under the lock.
  bool wait_open(Round& round, std::unique_lock<std::mutex>& lock, const Call& call);
  template <typename Over>
  bool spin(const Over& over) const noexcept;
  template <typename Over>
  bool look(const Over& over) noexcept;
  Error missing(Errc code, const Round& round, std::span<const Op> ops, const Call& call,
                const char* what) const;

  const std::string group_;
  const int size_;
  const int spins_;  // Looks at a flag that keep the core; none when ranks outnumber the cores.
  std::atomic<int> unyielding_{0};  // So many waits to come do not yield.

  mutable std::mutex mutex_;
  std::condition_variable moved_;
  std::atomic<int> sleepers_{0};  // Ranks that wait for a round on moved_; changed under the lock.
  std::optional<Error> cause_;
  std::vector<bool> joined_;
  std::vector<bool> gone_;
  std::vector<std::int64_t> last_;  // The newest round a rank has entered, for error texts.
  int members_ = 0;
  std::list<Round> rounds_;
  std::list<Round> spare_;  // Used again: a steady state allocates nothing.
  internal::Mailbox mailbox_;
};

}  // namespace tutti::backend::local
