#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <tutti/device.hpp>
#include <tutti/log.hpp>
#include <tutti/memory.hpp>
#include <tutti/store/store.hpp>

namespace [[gnu::visibility("default")]] tutti {

class Backend;  // <tutti/backend/backend.hpp>

/// A communicator that the caller made with the backend's library: for "nccl" an ncclComm_t.
struct AdoptedCommunicator {
  void* communicator = nullptr;  ///< Must not be null.
  /// Called once, from any thread, before the group aborts the communicator, which is invalid
  /// afterwards.
  std::function<void()> aborting{};
};

/// Options of ProcessGroup::create(). A value type.
struct GroupOptions {
  std::string backend = "auto";    ///< A name in `tutti info`, "name:args", or "auto".
  std::shared_ptr<Store> store{};  ///< Required for more than one rank.
  int rank = 0;                    ///< 0 .. size - 1.
  int size = 1;                    ///< The number of ranks.
  Device device{};                 ///< Where the arrays of the calls are. Default: the host.
  std::chrono::nanoseconds timeout = std::chrono::minutes(5);  ///< The default timeout of calls.
  std::string name = "world";     ///< Prefix of the group's keys in the store; shown in errors.
  std::optional<bool> checked{};  ///< Checked mode; empty: on if TUTTI_CHECK=1.
  /// CallOptions::reproducible of every call; empty: on if TUTTI_REPRODUCIBLE=1.
  std::optional<bool> reproducible{};
  /// The time after which a rank that has stopped, or whose host or link is down, counts as dead:
  /// calls that wait for it end with peer_lost. Equal on all ranks; from 100 ms to 24 h. 0: never,
  /// which a process under a debugger needs. Empty: TUTTI_DEAD_AFTER in seconds, or else 10 s. A
  /// slow rank is not dead. Over processes, costs two round trips to the store per rank in each
  /// tenth of this time (docs/reliability.md).
  std::optional<std::chrono::nanoseconds> dead_after{};
  Memory* memory = nullptr;  ///< Memory for results; null: the backend's. Outlives the group.
  Logger logger{};           ///< Empty: default_logger().
  /// Wraps the group's backend, for tracing or fault injection. Wraps sub-groups too, except those
  /// that the wrapper's own split() makes.
  std::function<std::unique_ptr<Backend>(std::unique_ptr<Backend>)> decorate{};
  /// An existing communicator to use instead of a new one, for backends that support it ("nccl").
  /// Its rank, size and device equal the group's; set on all ranks or on none. Only the group and
  /// its Works may use it while they live. Afterwards the caller owns it again, unless the group
  /// aborted it.
  std::optional<AdoptedCommunicator> adopt{};
};

}  // namespace tutti
