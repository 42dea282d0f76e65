#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tutti/process_group.hpp>

#include "support/worlds.hpp"

// Ranks are threads of this process. The threads are made once, and the groups once per World: a
// test that leaves its group usable shares it with the next one.
//
// A rank that throws or fails an ASSERT aborts its group, so that its peers do not wait for it. The
// test then fails with the texts of all ranks, in the order of their errors.

namespace tutti::test {

using namespace std::chrono_literals;

/// The time after which a call of a test counts as hung.
inline constexpr std::chrono::nanoseconds group_timeout = 15s;
/// The time after which the program ends a run, because a call hangs.
inline constexpr std::chrono::nanoseconds run_timeout = 100s;

/// Runs `body(rank)` on `size` threads at the same time and waits for all.
void on_threads(int size, const std::function<void(int rank)>& body);

/// Runs `body` on every rank of the World's shared group. Make a fresh one to break it.
void on_ranks(const World& world, const std::function<void(ProcessGroup& group)>& body);

/// The differences of a fresh group from the shared ones.
struct Fresh {
  std::chrono::nanoseconds timeout = group_timeout;
  std::shared_ptr<Store> store{};  ///< Null: a new one in memory.
  std::string name = "fresh";
  std::chrono::nanoseconds run = run_timeout;           ///< Longer for runs over much memory.
  std::function<void(GroupOptions& options)> adjust{};  ///< Called last, on each rank.
};

/// Runs `body` on every rank of a new group. The groups live until every rank has left `body`.
void on_fresh_ranks(const World& world, const std::function<void(ProcessGroup& group)>& body,
                    const Fresh& fresh = {});

/// The options of one rank of a World; the mutant of this process, if any, is in `decorate`.
GroupOptions group_options(const World& world, int rank, std::shared_ptr<Store> store);

/// Ends the shared groups. Their next use makes new ones.
void drop_shared_groups();

/// A barrier of ranks that uses no group. For one run of `size` ranks.
class RankBarrier {
 public:
  explicit RankBarrier(int size);
  ~RankBarrier();
  RankBarrier(const RankBarrier&) = delete;
  RankBarrier& operator=(const RankBarrier&) = delete;
  /// Blocks until all ranks have called it. Reusable. Throws when a rank does not reach it in time.
  void wait();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A value of every rank, to be read after the run.
template <typename T>
class PerRank {
 public:
  explicit PerRank(int size) : values_(static_cast<std::size_t>(size)) {}
  T& operator[](int rank) { return values_[static_cast<std::size_t>(rank)]; }
  const std::vector<T>& all() const { return values_; }

 private:
  std::vector<T> values_;
};

}  // namespace tutti::test
