// The backend of host memory between processes, over TCP. Gloo's transport carries the messages;
// the collectives are those of lib/core/collectives (docs/gloo.md).

#include <dlfcn.h>

#include <string>
#include <string_view>

#include <fmt/format.h>
#include <gloo/transport/tcp/device.h>

#include <tutti/backend/backend_table.hpp>

#include "backend/rendezvous.hpp"
#include "collectives/algorithms.hpp"
#include "mesh/backend.hpp"
#include "mesh/interface.hpp"
#include "mesh/linked_mesh.hpp"
#include "on_cuda.hpp"
#include "rendezvous.hpp"
#include "values/port_range.hpp"

namespace tutti::backend::gloo {
namespace {

std::unique_ptr<Backend> make(const BackendInit& init) {
  internal::refuse_encryption("gloo");
  if (init.device.type != DeviceType::cpu) return make_on_cuda(init, make);
  return mesh::make_backend(init, mesh::make_linked_mesh(init, rendezvous));
}

// Returns an error text if the dynamic linker has bound Gloo's functions to those of LibTorch:
// libtorch_cpu.so exports another version of Gloo (docs/adapters.md).
std::string foreign_gloo() {
  using Create =
      std::shared_ptr<::gloo::transport::Device> (*)(const ::gloo::transport::tcp::attr&);
  const Create create = &::gloo::transport::tcp::CreateDevice;
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(create), &info) == 0 || info.dli_fname == nullptr)
    return {};
  const std::string_view path = info.dli_fname;
  const auto file = path.substr(path.rfind('/') + 1);
  if (!file.starts_with("libtorch")) return {};
  return fmt::format(
      "its functions are those of {}, which has another version of Gloo: link libgloo "
      "before it, or start with LD_PRELOAD=libgloo.so.0",
      path);
}

/// The reason why ranks cannot use Gloo here; empty if they can.
std::string obstacle() try {
  if (const auto ports = internal::port_range())
    return fmt::format(
        "TUTTI_PORTS is {}, and Gloo cannot limit the ports at which it listens; choose tcp",
        ports->text());
  return foreign_gloo();
} catch (const Error& error) {
  return error.message();
}

}  // namespace

extern const BackendEntry entry;
const BackendEntry entry{
    .name = "gloo",
    .summary = "host memory over TCP, any number of machines; gloo:eth0 names the interface",
    .serves = [](Device device) noexcept { return device.type == DeviceType::cpu; },
    .unavailable = obstacle,
    .make = make,
    .details = [] { return mesh::describe_interface() + collectives::describe_table(true); },
    .device_count = device_count,
    .stages = stages,
    .receives_from_any = true,
};

}  // namespace tutti::backend::gloo
