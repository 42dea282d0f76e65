// The backend of host memory between processes, over TCP (docs/tcp.md). The collectives are those
// of lib/core/collectives.

#include <tutti/backend/backend_table.hpp>

#include "collectives/algorithms.hpp"
#include "mesh/backend.hpp"
#include "mesh/interface.hpp"
#include "mesh/linked_mesh.hpp"
#include "rendezvous.hpp"

namespace tutti::backend::tcp {
namespace {

std::unique_ptr<Backend> make(const BackendInit& init) {
  return mesh::make_backend(init, mesh::make_linked_mesh(init, rendezvous));
}

}  // namespace

extern const BackendEntry entry;
const BackendEntry entry{
    .name = "tcp",
    .summary = "host memory over TCP, any number of machines; tcp:eth0 names the interface",
    .serves = [](Device device) noexcept { return device.type == DeviceType::cpu; },
    .unavailable = [] { return std::string(); },
    .make = make,
    .details = [] { return mesh::describe_interface() + collectives::describe_table(false); },
    .receives_from_any = true,
};

}  // namespace tutti::backend::tcp
