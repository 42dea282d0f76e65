#pragma once

#include <functional>

#include <tutti/backend/backend_table.hpp>

#include "links.hpp"
#include "mesh/linked_mesh.hpp"

namespace tutti::backend::tcp {

/// Connects all ranks. `ended`: of Links. @throws Error timeout, unsupported (a rank with a
/// loopback address has peers on other hosts), invalid_argument (no such interface;
/// TUTTI_TCP_CONNECTIONS), resource_exhausted; the error of a rank that has given up.
mesh::Connected<Links> rendezvous(const BackendInit& init, std::function<void(int peer)> ended);

}  // namespace tutti::backend::tcp
