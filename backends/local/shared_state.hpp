#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <tutti/backend/backend.hpp>

#include "backend/agreement.hpp"
#include "backend/mailbox.hpp"
#include "backend/waiting.hpp"

namespace tutti::backend::local {

constexpr std::size_t cache_line = 64;
constexpr std::size_t inline_bytes = 88;

/// The entry of a rank to a call. Written by this rank alone.
struct alignas(2 * cache_line) Entry {
  std::atomic<std::uint64_t> number{0};  ///< The number of the call + 1; stored last.
  std::uint64_t fingerprint = 0;
  std::span<const Op> ops{};  ///< Valid until all ranks have finished the call.
  const Call* call = nullptr;
  std::array<std::byte, inline_bytes> data;  ///< The array of an inlined call.
};
static_assert(sizeof(Entry) == 2 * cache_line);

/// The words of one rank. Peers poll some of them while the rank writes others.
struct RankState {
  std::array<Entry, 2> entries{};  ///< By the count of calls that all ranks have entered.
  alignas(cache_line) std::atomic<std::uint64_t> finished{0};  ///< Steps that the rank has ended.
  // Of the thread whose turn it is.
  alignas(cache_line) std::uint64_t entered = 0;  ///< Calls that all ranks have entered.
  std::uint64_t steps = 0;
  // The rank's sleep.
  alignas(cache_line) std::atomic<std::uint32_t> bell{0};  ///< Counts wake-ups.
  std::atomic<std::uint32_t> sleeps{0};  ///< Not 0: the rank waits for this rank, + 1.
  // Under the lock.
  alignas(cache_line) std::uint64_t refused = 0;  ///< The newest refused call, + 1.
  bool joined = false;
  bool gone = false;
};

/// A call that all ranks have entered.
class Entered {
 public:
  Entered(std::span<const RankState> ranks, std::size_t parity, bool inlined) noexcept
      : ranks_(ranks), parity_(parity), inlined_(inlined) {}

  const Entry& of(int rank) const noexcept {
    return ranks_[static_cast<std::size_t>(rank)].entries[parity_];
  }
  /// Collective number `k` of a rank. Point-to-point operations are not counted.
  const Op& collective(int rank, std::size_t k) const;
  std::size_t collectives() const;
  /// The ranks' arrays are in their entries, and no rank waits for the others to finish: the
  /// operations of other ranks may have ended.
  bool inlined() const noexcept { return inlined_; }

 private:
  std::span<const RankState> ranks_;
  std::size_t parity_;
  bool inlined_;
};

/// The state that the ranks of one group share. Called from the threads of all ranks. A call takes
/// the lock only if it has to sleep, or if the group is broken.
class SharedState {
 public:
  SharedState(internal::GroupNames names, int size);

  int size() const noexcept { return size_; }

  /// Blocks until all ranks have joined. @throws Error invalid_argument when the rank has joined
  /// already; timeout when ranks are missing; the cause if the group has broken.
  void join(int rank, Deadline limit);
  /// Records that the rank's group object has ended: calls that need this rank fail.
  void leave(int rank) noexcept;

  /// Publishes this rank's operations, and `array` if the call is inlined, and waits until all
  /// ranks have entered the call. @throws Error mismatch on all ranks if their calls differ, or if
  /// a rank refused the call; the cause if the group has broken. A deadline, or a rank that left,
  /// breaks it.
  Entered enter(int rank, std::span<const Op> ops, const Call& call,
                std::optional<std::span<const std::byte>> array);
  /// Ends a step of the call and waits until all ranks have ended it. Needs no deadline: all peers
  /// are running this step and wait for nothing else. Returns the error of the step, the same on
  /// all ranks.
  std::optional<Error> finish_step(int rank) noexcept;
  /// Records the error of this rank's share of its step, and breaks the group.
  void fail_step(int rank, std::span<const Op> ops, const Call& call, const Error& why);
  void refuse(int rank, std::span<const Op> ops, const Call& call, const Error& why) noexcept;

  /// The sends and receives. Valid as long as this object.
  internal::Mailbox& mailbox() noexcept { return mailbox_; }

  /// The first cause counts. Ends every call that ranks wait to enter, and every message.
  void break_with(const Error& cause) noexcept;
  std::optional<Error> cause() const;

 private:
  /// A call that a rank refused.
  struct Refused {
    std::uint64_t seq;
    Error error;
    int ended;  // Ranks that refused it or got the error.
  };

  RankState& of(int rank) noexcept { return ranks_[static_cast<std::size_t>(rank)]; }
  const RankState& of(int rank) const noexcept { return ranks_[static_cast<std::size_t>(rank)]; }
  bool has_entered(int rank, std::size_t parity, std::uint64_t number) const noexcept;
  void await_asleep(int rank, int peer, std::span<const Op> ops, const Call& call);
  std::optional<Error> compare(const Entered& entered, int rank) const;
  Error missing(Errc code, std::size_t parity, std::span<const Op> ops, const Call& call,
                const char* what) const;
  void break_locked(const Error& cause) noexcept;  // Under the lock.
  void announce(const Error& cause) noexcept;
  const Error* refusal_of(std::uint64_t seq) const noexcept;  // Under the lock.
  void end_refused(std::uint64_t seq) noexcept;               // Under the lock.
  template <typename Ready>
  void sleep(int rank, int peer, std::uint32_t heard, std::chrono::nanoseconds time,
             const Ready& ready) noexcept;
  template <typename Ready>
  bool poll(int rank, const Ready& ready) noexcept;
  void notify(int rank) noexcept;
  void ring(int rank) noexcept;
  void ring_all() noexcept;

  const internal::GroupNames names_;
  const int size_;
  std::vector<RankState> ranks_;
  internal::Polling polling_;
  std::atomic<int> sleepers_{0};  // Ranks that sleep in a call, or are about to.
  std::atomic<bool> broken_{false};
  std::atomic<std::uint64_t> failed_step_{0};  // The step that broke the group; 0: none.

  mutable std::mutex mutex_;
  std::condition_variable joined_;
  std::optional<Error> cause_;
  std::optional<Error> step_error_;  // Of failed_step_.
  std::uint64_t running_ = 0;  // The call that all ranks had entered when the group broke, + 1.
  int members_ = 0;
  std::list<Refused> refused_;
  internal::Mailbox mailbox_;
};

}  // namespace tutti::backend::local
