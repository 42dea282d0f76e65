#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <tutti/backend/backend.hpp>

#include "backend/group_names.hpp"
#include "values/bytes.hpp"

namespace tutti::internal {

/// A collective that a rank has made.
struct PastCall {
  std::uint64_t seq = 0;
  std::uint64_t fingerprint = 0;
  std::uint64_t before = 0;  ///< A hash of all collectives before this one.
  // Of its first collective.
  Operation operation{};
  DType dtype{};
  ReduceOp::Kind reduce{};
  int root = -1;
  std::int64_t bytes = 0;
  std::uint32_t ops = 1;
  std::string text{};  ///< The call in words; empty: of the numbers above.
};

/// The last collectives of a rank at one moment, oldest first. A fact about each call: it does not
/// change afterwards.
struct PastCalls {
  int rank = -1;  ///< In the group.
  std::vector<PastCall> calls{};
  /// Every 1024th call's number and PastCall::before, for ranks that are many calls apart.
  std::vector<std::array<std::uint64_t, 2>> marks{};

  bool empty() const noexcept { return calls.empty(); }
  std::uint64_t last() const noexcept { return calls.back().seq; }
};

/// For peers, through the store. @throws Error of the reader.
Bytes encode(const PastCalls& calls);
PastCalls decode_past_calls(const Bytes& bytes);

/// A call that two ranks made differently.
struct CallDifference {
  Operation operation{};  ///< This rank's, of the first such call that a rank still knows.
  std::uint64_t seq = 0;
  std::string text{};    ///< Names both sides.
  bool is_last = false;  ///< The last call of both ranks.
};
std::optional<CallDifference> difference(const GroupNames& names, const PastCalls& mine,
                                         const PastCalls& theirs);

/// The last collectives of one rank on a group. Ranks that compare theirs find a difference even
/// if no rank waited in the call that differed, such as a broadcast with two roots.
///
/// begin() and take_back() are called in the call's turn, take() from any thread.
class CallHistory {
 public:
  static constexpr std::size_t length = 64;
  static constexpr std::uint64_t mark_distance = 1024;

  CallHistory(GroupNames names, int rank) : names_(std::move(names)), rank_(rank) {}

  const GroupNames& names() const noexcept { return names_; }

  /// Records a call, and returns before().
  std::uint64_t begin(std::span<const Op> ops, const Call& call) noexcept;
  /// The hash of all calls before the last one.
  std::uint64_t before() const noexcept { return chain_; }
  /// Forgets call `seq`, if it is the last: it has ended on all ranks with an error that leaves the
  /// group usable. A rank that refused it has not recorded it.
  void take_back(std::uint64_t seq) noexcept;

  /// Of a group that is made of parts: while a Running lives, this rank is in its last call.
  class Running;
  bool is_running() const noexcept { return running_.load(std::memory_order_acquire); }

  PastCalls take() const;
  /// True if calls have begun since the last call of this function. From one thread.
  bool has_changed() noexcept;

 private:
  // A slot is a sequence lock: `version` is the number of the write, which never comes again, and 0
  // during a write.
  struct alignas(64) Slot {
    std::atomic<std::uint64_t> version{0};
    std::atomic<std::uint64_t> seq{0};
    std::atomic<std::uint64_t> fingerprint{0};
    std::atomic<std::uint64_t> before{0};
    std::atomic<std::uint64_t> what{0};
    std::atomic<std::int64_t> bytes{0};
  };
  void write(Slot& slot, const Call& call, const Op& first, std::size_t ops) noexcept;
  static std::optional<PastCall> read(const Slot& slot);

  GroupNames names_;
  int rank_;
  // Of the thread in whose turn a call is.
  std::uint64_t chain_ = 0;    // A hash of all calls before the last one.
  std::uint64_t present_ = 0;  // A hash of the last one alone; 0: none, or taken back.
  std::uint64_t seq_ = 0;      // Of the last one.
  std::uint64_t next_mark_ = 0;
  std::uint64_t written_ = 0;  // The number of writes.

  std::atomic<bool> running_{false};
  std::atomic<std::uint64_t> count_{0};
  std::uint64_t seen_ = 0;  // By has_changed().
  std::array<Slot, length> slots_;
  std::array<Slot, length> marks_;
};

class CallHistory::Running {
 public:
  explicit Running(CallHistory& history) noexcept : running_(history.running_) { set(true); }
  ~Running() { set(false); }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  void set(bool running) noexcept { running_.store(running, std::memory_order_release); }
  std::atomic<bool>& running_;
};

}  // namespace tutti::internal
