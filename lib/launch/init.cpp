#include <tutti/init.hpp>

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include <tutti/backend/backend_table.hpp>
#include <tutti/store/store_server.hpp>

#include "launch/cluster.hpp"
#include "store/is_listening.hpp"
#include "values/fail.hpp"

namespace tutti::internal {

bool needs_device(const BackendEntry& entry, const GroupOptions& group) {
  const bool on_cuda_alone = !entry.serves({}) && entry.serves({DeviceType::cuda, 0});
  return on_cuda_alone && group.device == Device();
}

Device device_of_rank(const BackendEntry& entry, const GroupOptions& group,
                      const std::optional<ClusterInfo>& launched) {
  const bool known = launched && launched->local_rank >= 0;
  const int local_rank = known ? launched->local_rank : 0;
  if (!known && group.size > 1)
    failf(Errc::invalid_argument,
          "init: backend '{}' needs a device, and no launcher gives the local rank of rank {} of "
          "{}; set InitOptions::group.device",
          group.backend, group.rank, group.size);
  const int count = entry.device_count == nullptr ? 1 : std::max(entry.device_count(), 1);
  return {DeviceType::cuda, local_rank % count};
}

}  // namespace tutti::internal

namespace [[gnu::visibility("default")]] tutti {
namespace {

constexpr std::string_view tcp = "tcp://";
constexpr auto leave_timeout = std::chrono::seconds(10);
/// leave_timeout while an exception unwinds the stack.
constexpr auto unwinding_leave_timeout = std::chrono::seconds(1);
/// The pause before a taken port is tried again.
constexpr auto hold_pause = std::chrono::milliseconds(100);

/// A store's server and this process's connection to it.
struct HostedStore {
  std::unique_ptr<StoreServer> server{};
  std::shared_ptr<Store> client{};
  int unwinding = std::uncaught_exceptions();

  HostedStore() = default;
  HostedStore(const HostedStore&) = delete;
  HostedStore& operator=(const HostedStore&) = delete;
  ~HostedStore() {
    client.reset();
    if (server == nullptr) return;
    const bool unwinds = std::uncaught_exceptions() > unwinding;
    server->wait_until_left(unwinds ? unwinding_leave_timeout : leave_timeout);
  }
};

/// The address to listen on so that every rank reaches `host`. A numeric address is used unchanged.
/// For a name the server listens on all interfaces, because the name may resolve differently here
/// (Debian maps a host's name to 127.0.1.1).
std::string listen_address(const std::string& host) {
  in6_addr number{};
  const bool numeric = ::inet_pton(AF_INET, host.c_str(), &number) == 1 ||
                       ::inet_pton(AF_INET6, host.c_str(), &number) == 1;
  return numeric || host == "localhost" ? host : "";
}

/// True if the port is taken but nothing listens on it: a closing connection, or another program's
/// connection, uses the port and will release it.
bool only_held(const Error& error, const std::string& host, int port) {
  const auto taken = std::make_error_code(std::errc::address_in_use).message();
  return error.message().find(taken) != std::string::npos && !internal::is_listening(host, port);
}

std::shared_ptr<Store> host_store(const std::string& address, std::chrono::nanoseconds timeout) {
  const auto host_port = std::string_view(address).substr(tcp.size());
  const auto colon = std::min(host_port.rfind(':'), host_port.size());
  std::string host(host_port.substr(0, colon));
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const auto digits = host_port.substr(std::min(colon + 1, host_port.size()));
  int port = 0;
  (void)std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (host.empty() || port < 1 || port > 65535)
    return open_store(address, timeout);  // The connection's error explains the failure.
  auto hosted = std::make_shared<HostedStore>();
  const auto deadline = Deadline::after(timeout);
  while (hosted->server == nullptr) {
    try {
      hosted->server = std::make_unique<StoreServer>(
          StoreServerOptions{.host = listen_address(host), .port = port});
    } catch (const Error& error) {
      if (!only_held(error, host, port) || deadline.expired())
        internal::failf(error.code(),
                        "rank 0 cannot host the store at {}: {}; TUTTI_STORE_PORT sets another "
                        "port",
                        address, error.message());
      std::this_thread::sleep_for(hold_pause);
    }
  }
  hosted->client = open_store(address, timeout);
  return {hosted, hosted->client.get()};
}

/// The row of a backend; null for "auto" and unknown names.
const BackendEntry* find_backend(std::string_view backend) {
  const auto found =
      std::ranges::find(backends(), backend.substr(0, backend.find(':')), &BackendEntry::name);
  return found == backends().end() ? nullptr : &*found;
}

}  // namespace

std::shared_ptr<Store> open_cluster_store(const ClusterInfo& info,
                                          std::chrono::nanoseconds timeout) {
  if (info.store.empty())
    internal::failf(Errc::invalid_argument,
                    "{} ranks need a store to find each other, and {}; set "
                    "TUTTI_STORE, or MASTER_ADDR and MASTER_PORT (the host of rank 0)",
                    info.size,
                    info.launcher.empty() ? "no launcher gives an address"
                                          : info.launcher + " gives no address");
  const bool hosts = info.hosts_store && info.rank == 0 && info.store.starts_with(tcp);
  auto store = hosts ? host_store(info.store, timeout) : open_store(info.store, timeout);
  return info.run.empty() ? store : make_prefix_store(std::move(store), info.run);
}

ProcessGroup init(const InitOptions& options) {
  if (options.rank.has_value() != options.size.has_value())
    internal::failf(Errc::invalid_argument, "init: {} is set, but {} is not; set both or neither",
                    options.rank ? "rank" : "size", options.rank ? "size" : "rank");
  if (options.group.rank != 0 || options.group.size != 1)
    internal::failf(Errc::invalid_argument,
                    "init: InitOptions::group has rank {} of {}; set InitOptions::rank and "
                    "InitOptions::size instead",
                    options.group.rank, options.group.size);
  const VariablesEnvironment variables;
  const ClusterEnvironment& environment =
      options.environment == nullptr ? variables : *options.environment;
  GroupOptions group = options.group;
  std::optional<ClusterInfo> told;
  if (options.rank) {
    group.rank = *options.rank;
    group.size = *options.size;
  } else {
    told = environment.detect();
    if (!told)
      fail(Errc::not_initialized,
           "init: no launcher found; set InitOptions::rank and size, or TUTTI_RANK and TUTTI_SIZE");
    group.rank = told->rank;
    group.size = told->size;
  }
  const auto* entry = find_backend(group.backend);
  const bool needs_device = entry != nullptr && internal::needs_device(*entry, group);
  const bool needs_store = group.store == nullptr && group.size > 1;
  if (!told && (needs_store || needs_device)) told = environment.detect();
  if (needs_device) group.device = internal::device_of_rank(*entry, group, told);
  if (needs_store) {
    if (!told) {
      told = ClusterInfo{};
      if (options.environment == nullptr) internal::read_store(*told);
    }
    told->rank = group.rank;
    told->size = group.size;
    group.store = open_cluster_store(*told, group.timeout);
  }
  return ProcessGroup::create(group);
}

}  // namespace tutti
