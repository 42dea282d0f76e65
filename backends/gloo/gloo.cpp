// The backend of host memory between processes, over TCP. Gloo's transport carries the messages;
// the collectives are those of lib/core/collectives (docs/design/host-backends.md).

#include <dlfcn.h>

#include <utility>

#include <fmt/format.h>
#include <gloo/transport/tcp/device.h>

#include <tutti/backend/backend_table.hpp>

#include "backend/rendezvous.hpp"
#include "collectives/algorithms.hpp"
#include "gloo/mesh.hpp"
#include "mesh/backend.hpp"
#include "on_cuda.hpp"
#include "sigpipe.hpp"
#include "values/environment_switch.hpp"

namespace tutti::backend::gloo {
namespace {

class GlooBackend final : public mesh::MeshBackend {
 public:
  using MeshBackend::MeshBackend;

 private:
  std::unique_ptr<Backend> with(std::shared_ptr<const mesh::Group> group) const override {
    return std::make_unique<GlooBackend>(std::move(group), own_memory());
  }
  void run(std::span<const Op> ops, const Call& call) override {
    const BlockSigpipe quiet;
    MeshBackend::run(ops, call);
  }
  std::shared_ptr<WorkState> post_one(const Op& op, const Call& call, Deadline limit) override {
    const BlockSigpipe quiet;
    return MeshBackend::post_one(op, call, limit);
  }
};

Settings settings() {
  return {.batch = internal::environment_switch("TUTTI_GLOO_BATCH", true),
          .reno = internal::environment_switch("TUTTI_GLOO_RENO", true)};
}

std::string details() {
  const auto [batch, reno] = settings();
  auto text = mesh::describe_interface();
  text += fmt::format("I/O thread: {} (TUTTI_GLOO_BATCH)\n",
                      batch ? "SCHED_BATCH" : "the policy of the thread that makes the group");
  text += fmt::format("congestion control: {} (TUTTI_GLOO_RENO)\n",
                      reno ? "reno within a host, otherwise the system's" : "the system's");
  return text + collectives::describe_table(true);
}

std::unique_ptr<Backend> make(const BackendInit& init) {
  internal::refuse_encryption("gloo");
  if (init.device.type != DeviceType::cpu) return make_on_cuda(init, make);
  auto mesh = make_mesh({.group = init, .settings = settings()});
  return std::make_unique<GlooBackend>(whole_group(init, std::move(mesh)),
                                       init.memory == nullptr ? host_memory() : *init.memory);
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

}  // namespace

extern const BackendEntry entry;
const BackendEntry entry{
    .name = "gloo",
    .summary = "host memory over TCP, any number of machines; gloo:eth0 names the interface",
    .serves = [](Device device) noexcept { return device.type == DeviceType::cpu; },
    .unavailable = foreign_gloo,
    .make = make,
    .details = details,
    .device_count = device_count,
    .stages = stages,
    .receives_from_any = true,
};

}  // namespace tutti::backend::gloo
