#include <tutti/init.hpp>

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include <tutti/backend/backend_table.hpp>
#include <tutti/store/store_server.hpp>
#include <tutti/store/token.hpp>

#include "launch/cluster.hpp"
#include "launch/hosted_store.hpp"
#include "launch/published_store.hpp"
#include "store/is_listening.hpp"
#include "store/network_interface.hpp"
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
/// The pause before a taken port is tried again.
constexpr auto hold_pause = std::chrono::milliseconds(100);

/// The address to listen on so that every rank reaches `host`. A numeric address is used unchanged.
/// For a name the server listens on all interfaces, because the name may resolve differently here
/// (Debian maps a host's name to 127.0.1.1).
std::string listen_address(const std::string& host) {
  in6_addr number{};
  const bool numeric = ::inet_pton(AF_INET, host.c_str(), &number) == 1 ||
                       ::inet_pton(AF_INET6, host.c_str(), &number) == 1;
  return numeric || host == "localhost" ? host : std::string("*");
}

bool port_is_taken(const Error& error) {
  const auto taken = std::make_error_code(std::errc::address_in_use).message();
  return error.message().find(taken) != std::string::npos;
}

/// The host and port of "tcp://host:port".
struct TcpAddress {
  std::string host{};
  int port = 0;
  bool valid() const { return !host.empty() && port >= 1 && port <= 65535; }
};

TcpAddress parse_tcp(std::string_view address) {
  const auto host_port = address.substr(tcp.size());
  const auto colon = std::min(host_port.rfind(':'), host_port.size());
  auto host = host_port.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  const auto digits = host_port.substr(std::min(colon + 1, host_port.size()));
  TcpAddress parsed{.host = std::string(host)};
  (void)std::from_chars(digits.data(), digits.data() + digits.size(), parsed.port);
  return parsed;
}

/// The address of a store that rank 0 hosts. Without a token it is on loopback, unless the ranks
/// ask for another one. Every rank decides by values that are the same on all.
std::string hosted_address(const ClusterInfo& info) {
  const auto wanted = parse_tcp(info.store);
  if (!wanted.valid() || !info.token_file.empty() || info.open_store ||
      wanted.host == "localhost" || internal::is_loopback(wanted.host))
    return info.store;
  if (info.local_size == info.size) return fmt::format("{}127.0.0.1:{}", tcp, wanted.port);
  const auto text = fmt::format(
      "the store at {} would listen for other hosts without authentication", info.store);
  if (info.rank != 0)  // Launchers show the texts of all ranks.
    internal::failf(Errc::invalid_argument,
                    "{}; set TUTTI_TOKEN_FILE or TUTTI_STORE_OPEN=1 on every host", text);
  internal::failf(
      Errc::invalid_argument,
      "{}; {}set TUTTI_TOKEN_FILE on every host to a file with the same secret (openssl rand -hex "
      "32 > FILE; chmod 600 FILE), or TUTTI_STORE_OPEN=1 if only trusted programs reach this "
      "network",
      text,
      info.launcher == "Slurm"
          ? "start the ranks by srun --mpi=pmi2 or --mpi=pmix (without MASTER_ADDR), or "
          : "");
}

std::shared_ptr<Store> host_store(const std::string& address, const ClusterInfo& info,
                                  const StoreIdentity& identity, std::chrono::nanoseconds timeout) {
  const auto [host, port] = parse_tcp(address);
  auto hosted = std::make_shared<internal::HostedStore>();
  const auto deadline = Deadline::after(timeout);
  const StoreServerOptions options{.host = listen_address(host),
                                   .port = port,
                                   .token = identity.token,
                                   .job = info.job,
                                   .generation = info.generation,
                                   .size = info.of_ranks ? info.size : 0};
  while (hosted->server == nullptr) {
    try {
      hosted->server = std::make_unique<StoreServer>(options);
    } catch (const Error& error) {
      const bool taken = port_is_taken(error);
      // A closing connection, or another program's connection, will release the port.
      const bool only_held = taken && !internal::is_listening(host, port);
      if (!only_held || deadline.expired())
        internal::failf(
            error.code(),
            "rank 0 cannot host the store at {}: {}{}; TUTTI_STORE_PORT sets another port", address,
            error.message(),
            taken ? "; another step of this job, or another job, may use the port" : "");
      std::this_thread::sleep_for(hold_pause);
    }
  }
  hosted->client = open_store(address, timeout, identity);
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
  if (internal::can_publish_store(info)) return internal::open_published_store(info, timeout);
  if (info.store.empty())
    internal::failf(Errc::invalid_argument,
                    "{} ranks need a store to find each other, and {}; set "
                    "TUTTI_STORE, or MASTER_ADDR and MASTER_PORT (the host of rank 0)",
                    info.size,
                    info.launcher.empty() ? "no launcher gives an address"
                                          : info.launcher + " gives no address");
  const bool of_tcp = info.store.starts_with(tcp);
  StoreIdentity identity;
  if (of_tcp && !info.token_file.empty())
    identity = {.token = StoreToken::read(info.token_file),
                .job = info.job,
                .generation = info.generation,
                .rank = info.of_ranks ? info.rank : -1,
                .size = info.of_ranks ? info.size : 0};
  const bool by_rank_0 = of_tcp && info.hosts_store;
  const auto address = by_rank_0 ? hosted_address(info) : info.store;
  // The connection's error explains an address that is not valid.
  auto store = by_rank_0 && info.rank == 0 && parse_tcp(address).valid()
                   ? host_store(address, info, identity, timeout)
                   : open_store(address, timeout, identity);
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
    if (!told && !options.alone_without_launcher)
      fail(Errc::not_initialized,
           "init: no launcher found; start the program with `tutti run -n N`, set "
           "InitOptions::rank and size (or TUTTI_RANK and TUTTI_SIZE), or set "
           "InitOptions::alone_without_launcher for one rank");
    group.rank = told ? told->rank : 0;
    group.size = told ? told->size : 1;
  }
  const auto* entry = find_backend(group.backend);
  const bool needs_device = entry != nullptr && internal::needs_device(*entry, group);
  const bool needs_store = group.store == nullptr && group.size > 1;
  if (!told && (needs_store || needs_device)) told = environment.detect();
  if (needs_device) group.device = internal::device_of_rank(*entry, group, told);
  if (needs_store) {
    if (!told) told = ClusterInfo{};
    if (options.rank && options.environment == nullptr) internal::read_store(*told, false);
    told->rank = group.rank;
    told->size = group.size;
    group.store = open_cluster_store(*told, group.timeout);
  }
  return ProcessGroup::create(group);
}

}  // namespace tutti
