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

/// One collective launch, in which the ranks exchange their operations.
struct Round {
  enum class State : std::uint8_t { open, running, failed };

  struct Slot {
    std::span<const Op> ops{};
    const Call* call = nullptr;  // Null until the rank has entered.
  };

  std::uint64_t seq = 0;
  std::vector<Slot> slots;     // By rank.
  int arrived = 0;             // Ranks that entered or refused.
  std::optional<Error> error;  // The reason of a failure, the same for all ranks.
  // Own cache lines, because ranks poll these while others write the members above.
  alignas(64) std::atomic<State> state{State::open};
  alignas(64) std::atomic<int> finished{0};  // Steps that ranks have ended, over all operations.
  std::atomic<int> left{0};

  /// Collective number `k` of a rank. Point-to-point operations are not counted.
  const Op& collective(int rank, std::size_t k) const;
  std::size_t collectives() const;
};

/// The state that the ranks of one group share. Called from the threads of all ranks.
class SharedState {
 public:
  SharedState(std::string group, int size);

  int size() const noexcept { return size_; }
  const std::string& group() const noexcept { return group_; }

  /// Blocks until all ranks have joined. @throws Error invalid_argument when the rank has joined
  /// already; timeout when ranks are missing; the cause if the group has broken.
  void join(int rank, Deadline limit);
  /// Records that the rank's group object has ended: calls that need this rank fail.
  void leave(int rank) noexcept;

  /// Publishes this rank's operations and waits until all ranks have entered the round, which is
  /// then running. @throws Error the round's error, or the cause that broke the group. A deadline,
  /// or a rank that left, breaks it.
  Round& enter(int rank, std::span<const Op> ops, const Call& call);
  /// Ends step `step` of the round and waits until all ranks have ended it. Needs no deadline: all
  /// peers are running this step and wait for nothing else.
  void finish_step(Round& round, int step) noexcept;
  /// Records the error of this rank's share of the step and breaks the group. All ranks read
  /// round.error after the step.
  void fail_round(Round& round, int rank, std::span<const Op> ops, const Call& call,
                  const Error& why);
  void leave_round(Round& round) noexcept;
  void refuse_round(int rank, std::span<const Op> ops, const Call& call, const Error& why) noexcept;

  /// The sends and receives. Valid as long as this object.
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
  const int spins_;                 // Polls without a yield; 0 when ranks outnumber the cores.
  std::atomic<int> unyielding_{0};  // The number of next waits that do not yield.

  mutable std::mutex mutex_;
  std::condition_variable moved_;
  std::atomic<int> sleepers_{0};  // Ranks that wait for a round on moved_; changed under the lock.
  std::optional<Error> cause_;
  std::vector<bool> joined_;
  std::vector<bool> gone_;
  std::vector<std::int64_t>
      last_;  // By rank: the newest round that it has entered, for error texts.
  int members_ = 0;
  std::list<Round> rounds_;
  std::list<Round> spare_;  // Reused: a steady state allocates nothing.
  internal::Mailbox mailbox_;
};

}  // namespace tutti::backend::local
