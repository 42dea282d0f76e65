#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/backend/backend.hpp>
#include <tutti/deadline.hpp>
#include <tutti/store/store.hpp>

namespace tutti::internal {

/// A call that a rank refused, or that ranks made differently.
struct Refusal {
  std::uint64_t call = 0;  ///< call_id() or pair_id().
  int rank = 0;
  std::string text;  ///< "all_reduce #17: the array is null"; of a difference the whole error text.
  /// The rank is in the call, so that it will abandon() it.
  bool entered = false;
  bool is_difference = false;
};

/// Return a hash: call_id() identifies a collective, pair_id() a send and its receive; `rank` is
/// the caller's. All ranks of the call compute the same number, even if their arrays, dtypes or
/// reduce operations differ.
std::uint64_t call_id(std::string_view group, std::uint64_t seq) noexcept;
std::uint64_t pair_id(std::string_view group, int rank, const Op& op) noexcept;

/// The calls of a group that ranks have refused, through its store: each rank reports its own,
/// finds those of its peers, and learns when all ranks have left one of them. Part of an Agreement.
///
/// Called from any thread, except where a function says "from one thread". All functions except
/// of() take round trips to the store; only await_abandoned() may block for longer.
class Refusals {
 public:
  /// `answers`: false if the store does not answer, so that a write would block for its timeout;
  /// does not throw. Outlives this object.
  Refusals(std::shared_ptr<Store> store, int rank, std::function<bool()> answers);

  /// Tells the peers that this rank refused a call, unless the store does not answer.
  void add(const Refusal& refusal) noexcept;
  /// The refusals published since the last call of this function. From one thread.
  std::vector<Refusal> read_new() noexcept;
  /// False if the store did not answer the last read_new(), or if a refusal that is announced is
  /// not in the store yet. From the same thread.
  bool has_read_all() const noexcept { return read_all_; }
  /// The first refusal of this call among those that read_new() has found; null: none. Takes no
  /// round trip. Valid while this object lives.
  const Refusal* of(std::uint64_t call) const noexcept;
  /// Reports that this rank has left a refused call, unless it has refused it itself. @throws Error
  /// of the store.
  void abandon(std::uint64_t call);
  /// Blocks until all of `ranks`, with this one, have refused or abandoned the call, and returns
  /// those that abandoned it; none if this rank refused it. Takes a round trip for every 32 ranks,
  /// and a few more. @throws Error timeout at `limit`, and errors of the store.
  std::vector<int> await_abandoned(std::uint64_t call, std::span<const int> ranks, Deadline limit);

 private:
  void count_abandoned(std::uint64_t call, bool refused);

  std::shared_ptr<Store> store_;
  int rank_;
  std::function<bool()> answers_;
  std::int64_t numbered_ = 0;  // The last number of a refusal that this rank knows of.
  bool read_all_ = true;
  // Numbers of refusals not read yet: a rank that failed may never write its refusal.
  std::vector<std::int64_t> unread_;
  mutable std::mutex refused_mutex_;
  std::map<std::uint64_t, Refusal> refused_;  // By call.
  std::set<std::uint64_t> abandoned_;         // The calls for which this rank is counted.
};

}  // namespace tutti::internal
