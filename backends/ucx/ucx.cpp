// The backend of host memory between processes, over the transports of UCX but TCP
// (docs/design/host-backends.md).

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include <tutti/backend/backend_table.hpp>

#include "backend/rendezvous.hpp"
#include "collectives/algorithms.hpp"
#include "mesh/backend.hpp"
#include "ucx/rendezvous.hpp"
#include "values/environment_switch.hpp"
#include "values/fail.hpp"

namespace tutti::backend::ucx {
namespace {

bool includes_tcp(std::string_view list) {
  return list.find("tcp") != list.npos || list.find("all") != list.npos;
}

/// The transports for the text after the colon, or else UCX_TLS; never TCP. With `self`, which
/// connects a worker to itself, UCX does not warn. Of shared memory only transports that copy: with
/// CMA a peer may read the memory of a call that has ended with an error.
/// @throws Error unsupported if a list names TCP.
Transports transports_of(const std::string& args) {
  if (args == "shm") return {"posix,sysv,self", false};
  const char* const wanted = std::getenv("UCX_TLS");
  const std::string list = args.empty() && wanted != nullptr ? wanted : args;
  if (list.empty() || list == "all") return {"^tcp"};
  if (list.starts_with('^')) return {list + ",tcp"};
  if (includes_tcp(list))
    internal::failf(
        Errc::unsupported,
        "ucx: the transports \"{}\" include TCP, over which UCX does not authenticate its "
        "peers; use the backend tcp, or ucx without tcp",
        list);
  return {list + ",self"};
}

std::unique_ptr<Backend> make(const BackendInit& init) {
  if (init.args != "shm") internal::refuse_encryption("ucx");
  return mesh::make_backend(init, make_mesh(init, transports_of(init.args)));
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
    text = fmt::format("UCX {}; transports: {} (UCX_TLS); ucx:shm chooses shared memory\n",
                       api.get_version_string(), transports_of({}).list);
  } catch (const Error& error) {
    text = fmt::format("{}\n", error.message());
  }
  return text + collectives::describe_table(false);
}

/// True if there is an adapter of InfiniBand or RoCE, and UCX_TLS allows it.
bool is_beyond_tcp() {
  if (internal::environment_switch("TUTTI_TLS", false)) return false;
  std::error_code none;  // No such directory: no such device.
  if (std::filesystem::directory_iterator("/sys/class/infiniband", none) ==
      std::filesystem::directory_iterator())
    return false;
  const char* const wanted = std::getenv("UCX_TLS");
  std::string_view list = wanted == nullptr ? "" : wanted;
  if (list.empty() || list == "all") return true;
  if (list.starts_with('^') || includes_tcp(list)) return false;
  while (!list.empty()) {
    for (const char* name : {"ib", "rc", "dc", "ud"})
      if (list.starts_with(name)) return true;
    list.remove_prefix(std::min(list.find(','), list.size() - 1) + 1);
  }
  return false;
}

}  // namespace

std::shared_ptr<mesh::Mesh> make_mesh(const BackendInit& init, const Transports& transports) {
  return mesh::make_linked_mesh(init,
                                [&](const BackendInit& group, std::function<void(int peer)> ended) {
                                  return rendezvous(group, transports, std::move(ended));
                                });
}

extern const BackendEntry entry;
const BackendEntry entry{
    .name = "ucx",
    .summary =
        "host memory over UCX: InfiniBand, RoCE, shared memory; ucx:shm names the transports",
    .serves = [](Device device) noexcept { return device.type == DeviceType::cpu; },
    .unavailable = unavailable,
    .make = make,
    .details = details,
    .receives_from_any = true,
    .is_beyond_tcp = is_beyond_tcp,
};

}  // namespace tutti::backend::ucx
