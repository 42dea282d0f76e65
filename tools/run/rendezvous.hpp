#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include <tutti/store/store.hpp>
#include <tutti/store/store_server.hpp>

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

/// Connects the launchers of one launch, one per node: node 0 hosts the store, through which they
/// exchange how many ranks each has and which failed first. A thread does so, while the caller
/// listens to signals and ranks. One node needs no thread. Thread-safe.
class Rendezvous {
 public:
  /// @throws Failure when the store cannot be hosted.
  explicit Rendezvous(const LaunchOptions& options);
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;
  /// Node 0 waits, some seconds at most, until the others have left its store.
  ~Rendezvous();

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
  void talk();
  /// Null when it was told to stop.
  std::shared_ptr<Store> open();
  void meet(Store& store);
  void watch(Store& store);
  /// Empty when it was told to stop or the nodes should have been there.
  /// @throws Failure of another node that will not go on.
  std::optional<std::string> get(Store& store, const std::string& key);
  void set_assignment(const RankAssignment& assignment);
  void set_status(const ExitStatus& status);
  bool stopping() const;

  const LaunchOptions options_;
  const Deadline join_deadline_;
  std::string address_{};                  // Of the store.
  std::string host_ = "127.0.0.1";         // In it.
  std::unique_ptr<StoreServer> server_{};  // Of one node. Of several the thread hosts it.
  Descriptor changed_{};

  mutable std::mutex mutex_{};  // Of what follows.
  bool stopping_ = false;
  std::optional<RankAssignment> assignment_{};
  std::optional<ExitStatus> mine_{};
  std::optional<ExitStatus> status_{};
  std::thread thread_{};  // Last: it uses the others.
};

}  // namespace tutti::tool
