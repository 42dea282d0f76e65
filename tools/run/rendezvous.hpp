#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include <tutti/store/store.hpp>
#include <tutti/store/store_server.hpp>

#include "common/exit_code.hpp"
#include "run/child.hpp"
#include "run/launch_options.hpp"

namespace tutti::tool {

/// Where a launcher's ranks are among those of all nodes.
struct RankAssignment {
  int first_rank = 0;
  int size = 0;
  std::string store{};        ///< Of the ranks: "tcp://host:port".
  std::string master_host{};  ///< For programs of other libraries: a free port
  int master_port = 0;        ///< on the host of rank 0.
};

/// How the launch ended: with 0, or the failure that was reported first.
struct ExitStatus {
  int code = 0;
  std::string text{};
};
ExitStatus exit_status(const Failure& failure);

/// Connects the launchers of one launch, one per node: node 0 hosts the store, through which they
/// exchange how many ranks each has and which failed first. A thread does so, while the caller
/// listens to signals and ranks. One node needs no thread. Thread-safe. In its destructor node 0
/// waits, some seconds at most, until the others have left its store.
class Rendezvous {
 public:
  /// @throws Failure when the store cannot be hosted.
  explicit Rendezvous(const LaunchOptions& options);

  /// Readable when assignment() or status() is new.
  int changed() const noexcept { return changed_.get(); }
  void clear_changed() const;
  /// Empty until all nodes are there.
  std::optional<RankAssignment> assignment() const;
  /// Empty until a node has failed or all have ended well.
  std::optional<ExitStatus> status() const;
  /// Says how this node's ranks ended. The first call counts.
  void report(const ExitStatus& mine);

 private:
  void talk(const std::stop_token& stop);
  /// Null when it was told to stop.
  std::shared_ptr<Store> open(const std::stop_token& stop);
  void assign(const std::stop_token& stop, Store& store);
  void watch(const std::stop_token& stop, Store& store);
  /// Sets what is not set yet, for the caller to see.
  template <typename T>
  void publish(std::optional<T>& first, const T& value);

  const LaunchOptions options_;
  const Deadline join_deadline_;
  std::string address_{};                  // Of the store.
  std::string host_ = "127.0.0.1";         // In it.
  std::unique_ptr<StoreServer> server_{};  // Of one node. Of several the thread hosts it.
  Descriptor changed_{};

  mutable std::mutex mutex_{};  // Of what follows.
  std::optional<RankAssignment> assignment_{};
  std::optional<ExitStatus> mine_{};
  std::optional<ExitStatus> status_{};
  std::jthread thread_{};  // Last: it uses the others.
};

}  // namespace tutti::tool
