// The backend of host memory between processes, over every transport of UCX
// (docs/design/host-backends.md).

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <tutti/backend/backend_table.hpp>

#include "backend/rendezvous.hpp"
#include "collectives/algorithms.hpp"
#include "mesh/backend.hpp"
#include "mesh/linked_mesh.hpp"
#include "ucx/config.hpp"
#include "ucx/rendezvous.hpp"
#include "values/environment_switch.hpp"

namespace tutti::backend::ucx {
namespace {

class UcxBackend final : public mesh::MeshBackend {
 public:
  using MeshBackend::MeshBackend;

 private:
  std::unique_ptr<Backend> with(std::shared_ptr<const mesh::Group> group) const override {
    return std::make_unique<UcxBackend>(std::move(group), own_memory());
  }
};

/// The transports for the text after the colon. With `self`, which connects a worker to itself, UCX
/// does not warn. Of shared memory only transports that copy: with CMA a peer may read the memory
/// of a call that has ended with an error.
Transports transports_of(const std::string& args) {
  if (args.empty()) return {};
  if (args == "shm") return {"posix,sysv,self", false};
  return {args + ",self"};
}

std::unique_ptr<Backend> make(const BackendInit& init) {
  if (init.args != "shm") internal::refuse_encryption("ucx");
  auto mesh = make_mesh({.group = init, .transports = transports_of(init.args)});
  return std::make_unique<UcxBackend>(whole_group(init, std::move(mesh)),
                                      init.memory == nullptr ? host_memory() : *init.memory);
}

std::string unavailable() {
  try {
    (void)ucx_api();
    return {};
  } catch (const Error& error) {
    return error.message();
  }
}

std::string details() {
  std::string text;
  try {
    const auto& api = ucx_api();
    const char* const wanted = std::getenv("UCX_TLS");
    text = fmt::format("UCX {}; transports: {} (UCX_TLS); ucx:tcp and ucx:shm choose one kind\n",
                       api.get_version_string(), wanted == nullptr ? "UCX chooses" : wanted);
  } catch (const Error& error) {
    text = fmt::format("{}\n", error.message());
  }
  return text + collectives::describe_table(false);
}

/// True if UCX_TLS, a list such as "rc,tcp", leaves out InfiniBand and RoCE.
bool leaves_out_infiniband(std::string_view list) {
  if (list.starts_with('^')) return true;
  while (!list.empty()) {
    for (const char* name : {"all", "ib", "rc", "dc", "ud"})
      if (list.starts_with(name)) return false;
    list.remove_prefix(std::min(list.find(','), list.size() - 1) + 1);
  }
  return true;
}

bool is_beyond_tcp() {
  if (internal::environment_switch("TUTTI_TLS", false)) return false;
  const char* const wanted = std::getenv("UCX_TLS");
  if (wanted != nullptr && leaves_out_infiniband(wanted)) return false;
  return has_infiniband();
}

}  // namespace

std::shared_ptr<mesh::Mesh> make_mesh(const MeshInit& init) {
  if (init.group.size == 1) return mesh::mesh_of_one();
  auto ended = std::make_shared<mesh::EndedPeers>(init.group.size);
  auto made = rendezvous(init, [ended](int peer) { ended->add(peer); });
  // Checked mode compares the records of a message while its two sides wait for each other.
  if (init.group.checked) made.worker->set_synchronous();
  auto transports = made.worker->transports();
  auto mesh = std::make_shared<mesh::LinkedMesh<Worker>>(
      init.group, made.server, std::move(made.worker), std::move(ended), std::move(transports));
  mesh->watch(mesh);
  return mesh;
}

extern const BackendEntry entry;
const BackendEntry entry{
    .name = "ucx",
    .summary =
        "host memory over UCX: InfiniBand, RoCE, TCP, shared memory; ucx:tcp names the transports",
    .serves = [](Device device) noexcept { return device.type == DeviceType::cpu; },
    .unavailable = unavailable,
    .make = make,
    .details = details,
    .receives_from_any = true,
    .is_beyond_tcp = is_beyond_tcp,
};

}  // namespace tutti::backend::ucx
