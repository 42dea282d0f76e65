#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/backend/backend_table.hpp>
#include <tutti/deadline.hpp>
#include <tutti/error.hpp>

#include "backend/group_names.hpp"
#include "backend/peek.hpp"

namespace tutti::internal {

/// The ranks that make a group find each other through its store: each publishes values, waits for
/// those of the others, and ends the waits of all when it gives up. From one thread.
class Rendezvous {
 public:
  /// The deadline is BackendInit::timeout from now. Borrows nothing. `watch`: called while this
  /// rank waits; may throw to end the wait.
  explicit Rendezvous(const BackendInit& init, std::function<void()> watch = {});

  /// The group's store, whose keys no other group uses.
  const std::shared_ptr<Store>& store() const noexcept { return store_; }
  Deadline limit() const noexcept { return limit_; }
  const GroupNames& names() const noexcept { return names_; }

  /// Sets this rank and the number of ranks, if they were not known before. The deadline is
  /// `timeout` from now.
  void place(int rank, int size, std::chrono::nanoseconds timeout) noexcept {
    rank_ = rank;
    size_ = size;
    limit_ = Deadline::after(timeout);
  }
  void publish(std::string_view key, std::span<const std::byte> value);
  /// Publishes a value, unless a rank has done so before. Returns the value that all ranks get.
  Bytes publish_first(std::string_view key, std::span<const std::byte> value);
  /// Blocks until a rank has published `key`. @throws Error timeout; the error of a rank that has
  /// given up.
  Bytes await(std::string_view key);
  /// Publishes this rank's value under `what`, and returns the values of all ranks
  /// (ValueExchange). `what` is used once. @throws Error timeout, whose text names the missing
  /// ranks; the error of a rank that has given up.
  /// @param look_too  is called from time to time while this rank waits, and may throw.
  std::vector<Bytes> exchange(std::string_view what, std::span<const std::byte> mine,
                              const std::function<void()>& look_too = {});
  std::vector<std::string> exchange(std::string_view what, std::string_view mine);

  /// Throws the error of a rank that has given up. Asks the store at most once in 20 ms, so a rank
  /// that waits for something else may call it often.
  void check();
  /// Ends the rendezvous of all ranks, because this rank cannot make the group. Returns the error
  /// that all ranks throw: of the rank that gave up first. Returns a lack of memory of this rank
  /// even if another one gave up before.
  Error give_up(const Error& why) noexcept;

 private:
  void look();
  bool answers() const;
  Error late(const std::vector<int>& ranks) const;

  std::shared_ptr<Store> store_;
  std::shared_ptr<Store> failures_;  // The store with the error of the rank that gave up.
  GroupNames names_;
  int rank_;
  int size_;
  Deadline limit_;
  std::function<void()> watch_;
  std::string published_;  // A key that the store has.
  Deadline::Clock::time_point next_look_{};
};

/// The key of the error that ends a rendezvous, or breaks the group that it has made: one key, so
/// ranks whose group is up learn of a rank that could not come up. The value of a group that
/// collects the status of its ranks begins with `collecting`.
inline constexpr std::string_view failed = "failed";
inline constexpr std::string_view collecting = "collecting ";

/// @throws Error unsupported if TUTTI_TLS is 1: `backend` sends in clear.
void refuse_encryption(std::string_view backend);

/// Returns for each rank the number of its host; hosts are numbered by their first rank. `hosts`:
/// of all ranks (values/host_identity.hpp).
std::vector<int> number_hosts(std::span<const std::string> hosts);

}  // namespace tutti::internal
