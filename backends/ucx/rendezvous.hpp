#pragma once

#include <functional>
#include <memory>

#include <tutti/backend/backend_table.hpp>

#include "mesh/mesh.hpp"
#include "worker.hpp"

namespace tutti::backend::ucx {

struct MeshInit {
  const BackendInit& group;
  Transports transports{};
};

struct Connections {
  std::shared_ptr<Worker> worker{};
  int server = -1;  ///< The rank that serves the store; -1: none, or unknown.
};

/// Finds the other ranks through the store and exchanges a message with each of them. `ended`: as
/// for Worker. @throws Error timeout; its text names the missing ranks. Error unsupported: no
/// transport connects two ranks. Error backend: a transport cannot be used. The error of a rank
/// that has given up.
Connections rendezvous(const MeshInit& init, std::function<void(int peer)> ended);

/// The mesh over these connections. @throws also resource_exhausted.
std::shared_ptr<mesh::Mesh> make_mesh(const MeshInit& init);

}  // namespace tutti::backend::ucx
