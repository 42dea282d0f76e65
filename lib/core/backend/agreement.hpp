#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/deadline.hpp>
#include <tutti/error.hpp>
#include <tutti/store/store.hpp>

#include "backend/call_history.hpp"
#include "backend/missing_ranks.hpp"
#include "backend/record.hpp"
#include "backend/refusals.hpp"

namespace tutti::internal {

/// The call that a rank is in.
struct Status {
  std::string call{};   ///< "all_reduce #3 on group 'world'"; empty: none.
  Record record{};      ///< The rank's description of the call; ranks may differ.
  std::string group{};  ///< Whose collectives Record::seq counts.
};

/// The report of a rank that has found an error which breaks its group.
struct Failure {
  Error cause;      ///< Applies on all ranks, unless another rank reported one before.
  Status status{};  ///< Status of this rank.
  /// The ranks whose status is collected after a timeout: rank i of the group that made the call is
  /// rank ask[i] of the Agreement (another number only in a sub-group). Empty: `cause` is complete.
  std::vector<int> ask{};
  GroupNames names{};  ///< Of the group that made the call.
  /// The time for collecting status, counted from `since`.
  std::chrono::nanoseconds patience = std::chrono::milliseconds(60);
  std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
};

/// A send or a receive, as one of its sides knows it.
struct MessageSide {
  int rank = 0;            ///< Rank of the Agreement that knows it.
  std::uint64_t pair = 0;  ///< pair_id().
  std::uint64_t fingerprint = 0;
  std::string text{};  ///< "recv f32 [3] from 0 tag 0".
};

/// Agreement of the ranks of a group through its store: on the error that broke the group, the
/// calls that were refused and the ranks that have left. The first cause in the store applies to
/// all ranks.
///
/// Called from any thread, except where a function says "from one thread". All functions except
/// refusals() take round trips to the store; only settle() and report() may block for longer. A
/// lookup in a TCP store that does not answer ends after 0.5 s as if the key were missing; a write
/// waits for the store's own timeout, unless set_silent() says that it would. Functions that are
/// noexcept ignore errors of the store: each rank then uses its own cause.
class Agreement {
 public:
  /// `store`: the group's, whose keys no other group uses. The key of the cause is that of a
  /// rendezvous; all other keys of this class begin with "agreement/".
  Agreement(const std::shared_ptr<Store>& store, int rank, int size);

  /// While the store is known not to answer, this rank reports nothing, and uses its own cause.
  /// Functions that ask the store note it too.
  void set_silent(bool silent) noexcept { silent_.store(silent, std::memory_order_relaxed); }
  bool is_silent() const noexcept { return silent_.load(std::memory_order_relaxed); }

  /// Reports that this rank has failed. True if no rank has reported before, or if the store fails.
  /// A backend ends its connections between announce() and settle(): a peer that detects this then
  /// finds the report.
  bool announce(const Failure& failure) noexcept;
  /// Returns the cause that applies to all ranks. `first`: the result of announce(). Blocks for at
  /// most Failure::patience on the first rank, and 1 s longer on the other ranks, in case the first
  /// rank stops responding.
  Error settle(const Failure& failure, bool first) noexcept;
  /// Calls announce(), then settle().
  Error report(const Failure& failure) noexcept;

  /// Returns the reported cause; empty while there is none. While a rank collects status, publishes
  /// `mine`.
  std::optional<Error> cause(const Status& mine) noexcept;
  /// True while a rank collects status. @throws Error of the store.
  bool collecting() const;
  /// Publishes the call that this rank is in.
  void publish_status(const Status& mine) noexcept;

  /// The refused calls. Its functions note, too, whether the store answers.
  Refusals& refusals() noexcept { return refusals_; }

  /// Publishes the calls of this rank on the group `group`, unless a rank with a later call has
  /// published its own; `publish`: false: only compares. Returns the first call that this rank and
  /// the rank that has published made differently. Takes one to three round trips. @throws Error of
  /// the store.
  std::optional<CallDifference> compare_calls(std::string_view group, const GroupNames& names,
                                              const PastCalls& mine, bool publish);
  /// Asks all ranks to compare their calls, after this rank has published its own.
  void ask_all();
  /// Asks `peer`, at the next ask_all(), whether it has made the other side of a message
  /// differently. A later question to the same peer replaces it. Has no effect while 64 ranks ask
  /// that peer.
  void ask(int peer, const MessageSide& mine);
  /// True if a rank has asked since the last call of this function. From one thread.
  bool is_asked();
  /// The latest questions of the peers to this rank since the last call of this function.
  std::vector<MessageSide> questions();
  /// False if the store does not answer, so that a write would block for its timeout.
  bool answers() const noexcept;

  /// Reports that this rank leaves on purpose and has ended its collectives below number `ended`.
  void leave(std::uint64_t ended) noexcept;
  /// True if the rank has called leave(). @throws Error of the store.
  bool left(int rank) const;
  /// The ranks that have left, each with the argument of its leave(). From one thread.
  const std::map<int, std::uint64_t>& departed() noexcept;

 private:
  std::optional<Bytes> ask(Store& store, std::string_view what) const;
  Error collect_status(const Failure& failure) const;
  std::string claim() const;

  std::shared_ptr<Store> failures_;
  std::shared_ptr<Store> store_;
  int rank_;
  int size_;
  mutable std::atomic<bool> silent_{false};  // Relaxed: no data depends on it.
  Refusals refusals_;
  std::string asked_;  // The counter's value at the last is_asked().
  std::map<int, std::uint64_t> departed_;
};

}  // namespace tutti::internal
