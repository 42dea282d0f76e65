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

/// A communicator of the backend's library that the caller has made: for "nccl" an ncclComm_t.
struct AdoptedCommunicator {
  void* communicator = nullptr;
  /// Called once when the group is about to abort it, from any thread: from then on it is gone.
  std::function<void()> aborting{};
};

struct GroupOptions {
  std::string backend = "auto";    ///< A name of `tutti info`, "name:args", or "auto".
  std::shared_ptr<Store> store{};  ///< Needed for more than one rank.
  int rank = 0;
  int size = 1;
  Device device{};
  std::chrono::nanoseconds timeout = std::chrono::minutes(5);  ///< Of calls that set none.
  std::string name = "world";     ///< Prefix of its keys in the store; shown in errors.
  std::optional<bool> checked{};  ///< Compare every call first; empty: TUTTI_CHECK=1 decides.
  Memory* memory = nullptr;       ///< Used instead of the backend's own; outlives the group.
  Logger logger{};                ///< Empty: default_logger().
  /// Wraps the backend of this group, and of sub-groups unless its own split() makes them
  /// (tracing, fault injection); see <tutti/backend/forwarding_backend.hpp>.
  std::function<std::unique_ptr<Backend>(std::unique_ptr<Backend>)> decorate{};
  /// Used instead of a communicator of the group's own, by backends that can ("nccl"): of the same
  /// rank, size and device, on all ranks or on none. Nobody else uses it while the group and its
  /// Works live; then it is the caller's again, unless the group had to abort it.
  std::optional<AdoptedCommunicator> adopt{};
};

}  // namespace tutti
