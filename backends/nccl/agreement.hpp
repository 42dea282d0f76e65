#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <tutti/deadline.hpp>
#include <tutti/error.hpp>
#include <tutti/store/store.hpp>

namespace tutti::backend::nccl {

/// How the ranks of a group agree, through the store, on what broke it: the first cause counts.
/// Called from any thread; blocks for round trips to the store, and where it says so.
class Agreement {
 public:
  /// The group's own store; its keys here begin with "nccl/".
  Agreement(const std::shared_ptr<Store>& store, int rank, int size);

  Store& store() const noexcept { return *store_; }
  /// Says that this rank is here, and blocks until the others have.
  /// @throws Error timeout naming the missing ranks, and what broke the group meanwhile.
  void meet(Deadline limit) const;

  /// Blocks until a peer has set a key. `call`: as for look().
  /// @throws Error timeout, and what broke the group meanwhile.
  Bytes await(std::string_view key, Deadline limit, const std::string& call) const;

  /// What counts, given that `mine` has happened here. Without the store it is `mine`.
  Error settle(const Error& mine) const noexcept;
  /// The same for a collective that reached its deadline: asks the others, for as long as
  /// `patience`, which call they are in, and names those that are not in `call`.
  Error collect_status(const Error& mine, const std::string& call,
                       std::chrono::nanoseconds patience) const noexcept;
  /// What broke the group elsewhere. Publishes `call`, this rank's, when a peer collects the
  /// status.
  std::optional<Error> look(const std::string& call) const noexcept;
  /// Publishes the call that this rank is in, for collect_status() of a peer.
  void publish_status(const std::string& where) const noexcept;

  /// This rank leaves on purpose, having ended its collectives below this number.
  void leave(std::uint64_t ended) const noexcept;
  /// The ranks that have left: what they said.
  const std::map<int, std::uint64_t>& departed() noexcept;  // From one thread.

 private:
  Error name_the_missing(const Error& mine, const std::string& call, Deadline end) const;

  std::shared_ptr<Store> store_;
  int rank_;
  int size_;
  std::map<int, std::uint64_t> departed_;
};

}  // namespace tutti::backend::nccl
