#pragma once

#include <functional>

#include <tutti/backend/backend_table.hpp>

#include "links.hpp"
#include "mesh/linked_mesh.hpp"

namespace tutti::backend::gloo {

/// Finds the other ranks through the store and connects to all of them. `ended`: of Links. @throws
/// Error timeout; its text names the missing ranks. Error invalid_argument: no such interface.
/// Error unsupported: a rank with a loopback address has peers on other hosts. Error backend: a
/// rank could not connect, maybe because an unauthenticated peer took a connection. The error of a
/// rank that has given up.
mesh::Connected<Links> rendezvous(const BackendInit& init, std::function<void(int peer)> ended);

}  // namespace tutti::backend::gloo
