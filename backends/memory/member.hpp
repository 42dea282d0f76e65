#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <poll.h>

#include <tutti/backend/backend_table.hpp>

#include "backend/agreement.hpp"
#include "backend/heartbeats.hpp"
#include "backend/record.hpp"
#include "backend/waiting.hpp"
#include "layout.hpp"
#include "mapped_memory.hpp"
#include "membership.hpp"
#include "peer_memory.hpp"

namespace tutti::backend::memory {

/// The error of a rank whose process has died.
Error dead_error(const internal::GroupNames& names, int rank) noexcept;

/// One rank's side of a group's shared memory: its entries to calls, the rounds of a call's data,
/// and the group's failure. The functions from begin() to end() are for the one thread whose turn
/// it is; all others may be called from any thread.
class Member {
 public:
  /// `made`: the group's memory, which all ranks have or will have.
  Member(const BackendInit& init, Membership made);
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  const internal::GroupNames& names() const noexcept { return names_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  const Layout& layout() const noexcept { return made_.memory.layout(); }

  // A call.

  /// Begins a call, whose rounds may be filled from now on. @throws Error if the group is broken: a
  /// peer may still read this rank's slots of an earlier call.
  void begin(std::span<const Op> ops, const Call& call);
  /// Enters the call with a small array, and waits until all ranks have entered. `first_filled`:
  /// round 0 of the call is filled already.
  /// @throws Error mismatch on all ranks if their calls differ, or if a rank refused the call; the
  ///         group stays usable. Other errors break the group.
  void enter(std::span<const std::byte> data, bool first_filled) {
    publish_entry(data);
    await_entries(first_filled);
  }
  /// The two halves of enter(). Between them the rank may prepare the rest of the call: it would
  /// wait meanwhile.
  void publish_entry(std::span<const std::byte> data);
  void await_entries(bool first_filled);
  /// The small array of a rank that has entered.
  const std::byte* entry_data(int rank) const noexcept;
  /// Ends the call on this rank.
  void end() noexcept;

  // Rounds are numbered from the first call of the group on; all ranks use the same numbers.

  std::uint64_t position() const noexcept { return position_; }
  /// Ends an operation with so many rounds.
  void advance(std::uint64_t rounds) noexcept { position_ += rounds; }
  /// Of two ranks: the next round of which `root` has read the slot last, if it was not the root of
  /// the last operation whose slots only one rank fills.
  std::uint64_t first_round_of(int root) const noexcept;
  /// After the entry: the rounds before are not used.
  void skip_to(std::uint64_t round) noexcept { position_ = known_taken_ = known_filled_ = round; }
  /// Ends an operation whose slots only `root` has filled, from this round on.
  void filled_by(int root, std::uint64_t first) noexcept {
    last_root_ = root;
    last_first_ = first;
  }
  /// The slot that a rank fills in a round. Two ranks exchange the memory of their slots each time
  /// that all slots have been used: a rank then fills what it has read last. A core writes faster
  /// to lines that it has read last than to lines that another core has read.
  std::byte* slot(int rank, std::uint64_t round) const noexcept;
  SlotPrefix& prefix(int rank, std::uint64_t round) const noexcept;
  /// Waits until this rank may fill its slot for this round.
  void await_free(std::uint64_t round);
  void await_filled(int peer, std::uint64_t round);
  void await_folded(int peer, std::uint64_t round);
  void filled(std::uint64_t round) noexcept;
  /// All ranks have filled this round before they entered the call.
  void all_filled(std::uint64_t round) noexcept { known_filled_ = round + 1; }
  void folded(std::uint64_t round) noexcept;
  void taken(std::uint64_t round) noexcept;

  // Direct access to the arrays of peers (access.cpp).

  /// True if all ranks are threads of this process.
  bool in_one_process() const noexcept { return in_one_process_; }
  /// Memory that peers can map.
  MappedMemory& memory() const noexcept { return *memory_; }
  PeerMemory& peer_memory() noexcept { return peer_memory_; }
  /// The bits, of agreed_bits, that all ranks have.
  static constexpr int agreed_bits = 16;
  std::uint32_t agree(std::uint32_t own);
  /// From now to end_access() this rank may access its peers' arrays. @throws Error if the group is
  /// broken: a peer may have returned from its call.
  void begin_access();
  /// @throws Error if the group is broken. The access has ended then.
  void check_access() {
    if (!is_broken()) return;
    end_access();
    throw_cause();
  }
  void end_access() noexcept;
  /// The number of collectives of which this rank has moved its part.
  std::uint64_t moved() const noexcept { return moved_; }
  /// Waits until all ranks have moved their part of a collective.
  void await_moved();
  /// The same after reads of private arrays. `complete`: this rank could read all that it needs.
  /// True on all ranks if all could.
  bool await_read(bool complete);
  /// The process of a rank, see Membership::ids; 0: this one.
  int process_of(int rank) const noexcept {
    const auto r = static_cast<std::size_t>(rank);
    return made_.processes[r].is_open() ? made_.ids[r] : 0;
  }
  ReadChoice& reads() noexcept { return made_.reads; }
  /// The cores that all ranks may use together.
  std::size_t cores() const noexcept { return made_.cores; }
  /// The group is broken. Waits until no peer accesses arrays. False if a process still may,
  /// because it has stopped.
  bool await_no_access() noexcept;

  // Errors of the call.

  /// Breaks the group because this rank's part of the call failed.
  [[noreturn]] void fail_call(const Error& why);
  /// Breaks the group because a peer wrote an impossible number.
  [[noreturn]] void fail_corrupt(int peer, std::string_view what);
  /// The error `mismatch`, unless sent(from, to) == expected(from, to) everywhere.
  template <typename Sent, typename Expected>
  std::optional<Error> compare_rows(const Sent& sent, const Expected& expected) const {
    return internal::compare_rows(names_, ops_, *call_, size_, sent, expected);
  }
  /// Ends the call with an error that all ranks throw. The group stays usable.
  [[noreturn]] void end_with(const Error& error) {
    end();
    throw Error(error);
  }

  // Failure.

  /// Breaks the group. Returns the first cause, which is the same on all ranks.
  Error fail(const Error& why) noexcept;
  std::optional<Error> failure() noexcept;
  /// Acquires: the cause is in the shared memory.
  bool is_broken() const noexcept { return shared().broken.load(std::memory_order_acquire) != 0; }
  /// The cause of a group that is_broken().
  Error cause() noexcept;
  /// Called once, on any thread, with the cause. Set before the first call.
  void on_failure(std::function<void(const Error&)> listener) { listener_ = std::move(listener); }
  /// Tells the peers that this rank refused a collective.
  void refuse(std::span<const Op> ops, const Call& call, const Error& why) noexcept;
  /// Leaves the group: peers that need this rank fail.
  void leave() noexcept;
  bool has_left(int rank) const noexcept {
    // Acquires: everything that the rank wrote before it left is visible then.
    return of(rank).gone.load(std::memory_order_acquire) != 0;
  }
  /// A rank whose process died without leaving; -1: none.
  int find_dead() const;
  /// The error of a peer that has been stopped for BackendInit::dead_after, while this rank waited
  /// for it. `stopped`: of that wait.
  std::optional<Error> find_stopped(int peer, internal::StoppedProcess& stopped) const;
  internal::StoppedProcess stopped_process() const noexcept {
    return internal::StoppedProcess(dead_after_);
  }
  /// True if the process of a rank died without leaving.
  bool has_died(int rank) const noexcept;
  Error left_error(int rank) const noexcept;
  /// The error when a peer wrote an impossible number.
  Error corrupt_error(int peer, std::string_view what) const noexcept;

  // For messages.

  Bell& message_bell(int rank) const noexcept { return of(rank).messages; }
  SharedRing& ring(int from, int to) const noexcept { return made_.memory.ring(from, to); }
  internal::Polling& polling() noexcept { return polling_; }
  static void ring_bell(Bell& bell) noexcept;

 private:
  /// A number that a peer will reach.
  struct Awaited {
    int peer;
    const Number& word;
    std::uint64_t value;
    bool exact = false;  ///< A higher number is not enough.
    bool reached(std::memory_order order) const noexcept {
      const auto now = word.load(order);
      return exact ? now == value : now >= value;
    }
  };

  SharedGroup& shared() const noexcept { return made_.memory.group(); }
  SharedRank& of(int rank) const noexcept { return made_.memory.of(rank); }
  SharedRank& mine() const noexcept { return of(rank_); }

  /// False if it is time to sleep.
  bool poll(const Awaited& awaited) {
    const auto reached = [&] { return awaited.reached(std::memory_order_acquire); };
    if (polling_.shortly(reached)) return true;
    notify_of_stores();
    return polling_.longer(reached);
  }
  void await(const Awaited& awaited) {
    if (!poll(awaited)) await_asleep(awaited);
  }
  void await_asleep(const Awaited& awaited);
  /// Waits for a number of each other rank, awaited_of(rank). A rank that sleeps is woken by one of
  /// the missing peers, chosen at random: half of the others arrive before it. In the order of the
  /// ranks it would sleep up to once for each peer.
  template <typename AwaitedOf>
  void await_each(const AwaitedOf& awaited_of) {
    for (int i = 1; i < size_; ++i) {
      const Awaited next = awaited_of((rank_ + i) % size_);
      if (poll(next)) continue;
      while (!next.reached(std::memory_order_acquire)) {
        int last = i + random_below(size_ - i);
        while (last > i && awaited_of((rank_ + last) % size_).reached(std::memory_order_acquire))
          --last;
        await_asleep(awaited_of((rank_ + last) % size_));
      }
    }
  }
  int random_below(int limit) noexcept;
  void await_all(Number SharedRank::*word, std::uint64_t value) {
    await_each([&](int peer) { return Awaited{peer, of(peer).*word, value}; });
  }
  void look(const Awaited& awaited);
  void look_at_processes(const Awaited& awaited);
  bool await_end_of_access(int rank) noexcept;
  void end_moved();
  void look_for_refusal();
  void look_for_difference();
  bool misses_rank_that_left(const Awaited& awaited) const noexcept;
  void await_reusable_entry();
  void compare();
  void publish(Number& word, std::uint64_t value) noexcept;
  void notify_of_stores() noexcept {
    if (std::exchange(unnotified_, false)) notify();
  }
  void notify() noexcept;
  void wake_waiters() noexcept;
  void wake_all() noexcept;
  bool has_entered(int rank, std::memory_order order) const noexcept;
  [[noreturn]] void fail_waiting(Errc code, const char* what, const Awaited& awaited);
  [[noreturn]] void throw_cause();
  Error::Where location() const;

  const internal::GroupNames names_;
  const int rank_;
  const int size_;
  const bool checked_;  // BackendInit::checked.
  const std::chrono::nanoseconds dead_after_;
  Membership made_;
  internal::Polling polling_;
  std::vector<pollfd> processes_;
  const bool in_one_process_;
  const std::shared_ptr<MappedMemory> memory_ = MappedMemory::of_process();
  PeerMemory peer_memory_;
  std::uint64_t agreements_ = 0;
  std::uint64_t moved_ = 0;

  // Of the call in turn.
  std::span<const Op> ops_{};
  const Call* call_ = nullptr;
  Deadline limit_{};         // Set when the call first sleeps.
  bool entering_ = false;    // The call waits for the entries of all ranks.
  bool unnotified_ = false;  // A peer may sleep although its word is stored: see publish().
  std::uint64_t position_ = 0;
  int last_root_ = 0;
  std::uint64_t last_first_ = 0;    // Of the last operation whose slots only that rank filled.
  std::uint64_t known_filled_ = 0;  // All ranks have filled every round below this.
  std::uint64_t known_taken_ = 0;   // All ranks have taken every round below this.
  std::uint64_t entered_ = 0;       // The last call that all ranks entered, + 1.
  std::uint32_t seen_refusals_ = 0;
  internal::StoppedProcess stopped_{dead_after_};

  std::mutex mutex_;
  std::condition_variable settled_;
  bool failing_ = false;
  std::optional<Error> cause_;
  std::function<void(const Error&)> listener_;
  std::vector<internal::StoppedProcess> stopped_peers_;  // In checked mode, under mutex_.
  internal::Agreement agreement_;

  // Of calls that wait long.
  std::minstd_rand random_;                        // Of await_each().
  Deadline::Clock::time_point next_look_{};        // At the processes of the peers.
  std::optional<internal::Agreement> of_whole_{};  // Of a part between hosts.
  Deadline::Clock::time_point next_comparison_{};  // look_for_difference() of the call below.
  std::uint64_t compared_ = 0;                     // A call, + 1.
};

}  // namespace tutti::backend::memory
