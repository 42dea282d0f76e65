#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <tutti/backend/backend_table.hpp>

#include "worker.hpp"

namespace tutti::backend::ucx {

/// A process of this host.
struct Process {
  std::int64_t id = 0;
  std::uint64_t start = 0;  ///< Tells processes apart that had the same id.

  static Process own();
  bool is_alive() const;
};

struct MeshInit {
  const BackendInit& group;
  Transports transports{};
};

struct Connections {
  std::shared_ptr<Worker> worker{};
  std::vector<Process> processes{};  ///< By rank.
  int server = -1;                   ///< The rank that serves the store; -1: none, or unknown.
};

/// Finds the other ranks through the store and exchanges a message with each of them. `ended`: as
/// for Worker. @throws Error timeout; its text names the missing ranks. Error backend: a transport
/// cannot be used, or a rank cannot be reached. The error of a rank that has given up.
Connections rendezvous(const MeshInit& init, std::function<void(int peer)> ended);

}  // namespace tutti::backend::ucx
