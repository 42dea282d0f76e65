#pragma once

#include <functional>
#include <memory>

#include <tutti/backend/backend_table.hpp>

#include "mesh/linked_mesh.hpp"
#include "worker.hpp"

namespace tutti::backend::ucx {

/// Finds the other ranks through the store and exchanges a message with each of them. `ended`: as
/// for Worker. @throws Error timeout; its text names the missing ranks. Error unsupported: no
/// transport connects two ranks. Error backend: a transport cannot be used. The error of a rank
/// that has given up.
mesh::Connected<Worker> rendezvous(const BackendInit& init, const Transports& transports,
                                   std::function<void(int peer)> ended);

/// The mesh over these connections. @throws also resource_exhausted.
std::shared_ptr<mesh::Mesh> make_mesh(const BackendInit& init, const Transports& transports);

}  // namespace tutti::backend::ucx
