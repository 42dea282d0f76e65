#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include <tutti/store/store.hpp>
#include <tutti/store/store_server.hpp>
#include <tutti/store/token.hpp>

#include "common/exit_code.hpp"
#include "run/child.hpp"
#include "run/launch_options.hpp"

namespace tutti::tool {

/// The ranks of this node among those of all nodes.
struct RankAssignment {
  int first_rank = 0;
  int size = 0;
  std::string store{};        ///< Store of the ranks: "tcp://host:port".
  std::string token_file{};   ///< Of that store; empty: it has no token.
  std::string master_host{};  ///< Host of rank 0, for programs of other libraries.
  int master_port = 0;        ///< A free port on that host.
};

/// The end of the launch: 0, or the failure that was reported first.
struct ExitStatus {
  int code = 0;
  std::string text{};
};
ExitStatus exit_status(const Failure& failure);

/// The token of a job that this process launches: of the user's file or pipe, or a new one for a
/// job on one node. The file of a new one, and of a pipe, is a descriptor of this process under
/// /proc, which ends with it. Empty for several nodes without a file, and without OpenSSL.
class JobToken {
 public:
  /// @throws Failure if the file cannot be used.
  explicit JobToken(const LaunchOptions& options);

  const StoreToken& token() const noexcept { return token_; }
  /// For TUTTI_TOKEN_FILE of the ranks; empty without a token.
  const std::string& file() const noexcept { return file_; }

 private:
  StoreToken token_{};
  std::string file_{};
  Descriptor held_{};
};

/// Connects the launchers of one launch, one per node, through a store that node 0 hosts. The
/// launchers exchange their numbers of ranks and the first failure, on a thread of this object; one
/// node needs no thread. Thread-safe. On node 0, the destructor waits a few seconds at most for the
/// other launchers to leave the store.
class Rendezvous {
 public:
  /// @throws Failure if the store cannot be hosted.
  explicit Rendezvous(const LaunchOptions& options);

  /// A descriptor that is readable after a change of assignment() or status().
  int changed() const noexcept { return changed_.get(); }
  void clear_changed() const;
  /// Empty until all nodes have joined.
  std::optional<RankAssignment> assignment() const;
  /// Empty until a node has failed or all have succeeded.
  std::optional<ExitStatus> status() const;
  /// Reports the end of this node's ranks. The first call counts.
  void report(const ExitStatus& mine);

 private:
  void talk(const std::stop_token& stop);
  /// Null if `stop` was requested.
  std::shared_ptr<Store> open(const std::stop_token& stop);
  void assign(const std::stop_token& stop, Store& store);
  void watch(const std::stop_token& stop, Store& store);
  /// Sets `first`, a value for the caller, unless it is set already, and makes changed() readable.
  template <typename T>
  void publish(std::optional<T>& first, const T& value);

  const LaunchOptions options_;
  const JobToken token_;
  const Deadline join_deadline_;
  std::string address_{};                  // Address of the store.
  std::string host_ = "127.0.0.1";         // The host in address_.
  std::unique_ptr<StoreServer> server_{};  // With one node. With several, the thread has it.
  Descriptor changed_{};

  mutable std::mutex mutex_{};  // Guards the next members.
  std::optional<RankAssignment> assignment_{};
  std::optional<ExitStatus> mine_{};
  std::optional<ExitStatus> status_{};
  std::jthread thread_{};  // Last member, because it uses the others.
};

}  // namespace tutti::tool
