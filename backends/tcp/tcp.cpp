// The backend of host memory between processes, over TCP (docs/tcp.md). The collectives are those
// of lib/core/collectives.

#include <utility>

#include <tutti/backend/backend_table.hpp>

#include "collectives/algorithms.hpp"
#include "mesh/backend.hpp"
#include "mesh/interface.hpp"
#include "mesh/linked_mesh.hpp"
#include "rendezvous.hpp"

namespace tutti::backend::tcp {
namespace {

class TcpBackend final : public mesh::MeshBackend {
 public:
  using MeshBackend::MeshBackend;

 private:
  std::unique_ptr<Backend> with(std::shared_ptr<const mesh::Group> group) const override {
    return std::make_unique<TcpBackend>(std::move(group), own_memory());
  }
};

std::shared_ptr<mesh::Mesh> make_mesh(const BackendInit& init) {
  if (init.size == 1) return mesh::mesh_of_one();
  auto ended = std::make_shared<mesh::EndedPeers>(init.size);
  auto made = rendezvous(init, [ended](int peer) { ended->add(peer); });
  auto mesh = std::make_shared<mesh::LinkedMesh<Links>>(
      init, made.server, std::move(made.links), std::move(ended), std::move(made.transport));
  mesh->watch(mesh);
  return mesh;
}

std::unique_ptr<Backend> make(const BackendInit& init) {
  return std::make_unique<TcpBackend>(whole_group(init, make_mesh(init)),
                                      init.memory == nullptr ? host_memory() : *init.memory);
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
