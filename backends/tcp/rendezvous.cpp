#include "rendezvous.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "backend/rank_location.hpp"
#include "backend/rendezvous.hpp"
#include "connect.hpp"
#include "mesh/interface.hpp"
#include "mesh/secret.hpp"
#include "mesh/sockets.hpp"
#include "store/served_store.hpp"
#include "values/bytes.hpp"
#include "values/environment_switch.hpp"
#include "values/fail.hpp"

namespace tutti::backend::tcp {
namespace {

/// The connections of two ranks. `one`, `other`: their TUTTI_TCP_CONNECTIONS; 0: not set.
int count_connections(int one, int other, bool same_host, bool same_machine) {
  // One connection is enough where there is no delay.
  constexpr int between_machines = 4;
  if (same_host) return 1;
  if (one == 0 && other == 0) return same_machine ? 1 : between_machines;
  return std::min(one == 0 ? between_machines : one, other == 0 ? between_machines : other);
}

/// The data that a rank publishes in the store for its peers.
struct PeerInfo {
  mesh::Interface interface {};
  int port = 0;
  int connections = 0;
  bool encrypts = false;
  std::uint64_t check = 0;  ///< Of the secret: equal on all ranks.
};

Bytes encode(const PeerInfo& info) {
  internal::Writer out;
  mesh::write(out, info.interface);
  out.i32(info.port).i32(info.connections).u8(info.encrypts ? 1 : 0).u64(info.check);
  return out.take();
}

PeerInfo decode(std::span<const std::byte> bytes, int rank) {
  const auto what = fmt::format("tcp: the address of rank {} in the store", rank);
  internal::Reader in(bytes, Errc::backend, what);
  PeerInfo info{.interface = mesh::read_interface(in)};
  info.port = in.i32();
  info.connections = in.i32();
  info.encrypts = in.u8() != 0;
  info.check = in.u64();
  in.end();
  return info;
}

/// The token of the store's clients, and for encryption over another store that of
/// TUTTI_TOKEN_FILE. @throws Error unsupported without OpenSSL or a token.
StoreIdentity identity_of(const Store& store, bool encrypts) {
  auto identity = internal::identity_of(store);
  const auto file = StoreToken::file_of_environment();
  if (!encrypts || identity.token) return identity;
  if (!internal::crypto::available)
    fail(Errc::unsupported,
         "TUTTI_TLS is 1, and this tutti was built without OpenSSL; build it with "
         "-Dopenssl=enabled (package libssl-dev)");
  if (file.empty())
    fail(Errc::unsupported,
         "TUTTI_TLS is 1, and the job has no token: the key would be sent in clear; set "
         "TUTTI_TOKEN_FILE to a file with the same secret on every host, or start the ranks with "
         "tutti run");
  identity.token = StoreToken::read(file);
  return identity;
}

}  // namespace

mesh::Connected<Links> rendezvous(const BackendInit& init, std::function<void(int peer)> ended) {
  internal::Rendezvous rendezvous(init);
  const auto locations = internal::locations_of(init, rendezvous);
  const auto interface = mesh::interface_of(init, locations);
  const Listener listener(interface.address);
  const bool encrypts = internal::environment_switch("TUTTI_TLS", false);
  auto secret = mesh::secret_of(rendezvous, "tcp", identity_of(*init.store, encrypts));
  PeerInfo own{interface, listener.port(), 0, encrypts, 0};
  own.connections = static_cast<int>(
      internal::environment_number("TUTTI_TCP_CONNECTIONS", 0, Links::most_connections));
  const auto check = mesh::prove(secret, std::as_bytes(std::span(std::string_view("check"))));
  std::memcpy(&own.check, check.data(), sizeof own.check);
  const auto infos = rendezvous.exchange("tcp/address", encode(own));

  const auto me = static_cast<std::size_t>(init.rank);
  const auto& here = *locations[me];
  mesh::Connected<Links> made;
  std::vector<mesh::Interface> interfaces;
  std::vector<PeerAddress> addresses;
  std::vector<internal::Cores> cores;
  int most = 1;
  for (std::size_t r = 0; r < infos.size(); ++r) {
    auto info = decode(infos[r], rendezvous.names()(static_cast<int>(r)));
    const auto& names = rendezvous.names();
    if (info.encrypts != encrypts)
      internal::failf(Errc::unsupported,
                      "group '{}': TUTTI_TLS is {} on rank {} and {} on rank {}; it must be the "
                      "same on all ranks",
                      names.group(), encrypts ? 1 : 0, names(init.rank), info.encrypts ? 1 : 0,
                      names(static_cast<int>(r)));
    if (info.check != own.check)
      internal::failf(Errc::unsupported,
                      "group '{}': the tokens of rank {} and rank {} differ; TUTTI_TOKEN_FILE must "
                      "name files with the same secret",
                      names.group(), names(init.rank), names(static_cast<int>(r)));
    const auto& there = *locations[r];
    const bool is_near = there.shares_loopback(here) && there.host == here.host;
    const bool same_machine = there.identity.boot == here.identity.boot;
    const int count = count_connections(own.connections, info.connections, is_near, same_machine);
    if (r != me) most = std::max(most, count);
    // The zone of a link-local address is an interface of the host that connects to it.
    auto& address = info.interface.address;
    if (const auto zone = address.find('%'); zone != std::string::npos && !is_near)
      address.replace(zone + 1, std::string::npos, interface.name);
    interfaces.push_back(info.interface);
    addresses.push_back({address, info.port, count});
    if (same_machine) cores.push_back(there.cores);
    if (there.serves_store) made.server = static_cast<int>(r);
  }
  mesh::check_reachable(rendezvous.names(), locations, interfaces);
  auto channels =
      connect_all(rendezvous, listener, init.rank, addresses, secret, encrypts, init.logger);
  internal::crypto::erase(secret);
  for (std::size_t r = 0; r < channels.size(); ++r)
    for (const auto& channel : channels[r]) {
      const int descriptor = channel.descriptor();
      if (init.dead_after.count() > 0) mesh::probe_idle(descriptor, init.dead_after);
      if (locations[r]->identity.boot == here.identity.boot) mesh::use_reno(descriptor);
    }
  made.links =
      std::make_shared<Links>(std::move(channels), init.checked, init.dead_after, std::move(ended));
  made.links->set_polling(cores.size(), internal::count_cores(cores));
  made.transport = fmt::format("tcp/{}{}", interface.name, encrypts ? ", TLS 1.3" : "");
  if (most > 1) made.transport += fmt::format(", {} connections to a rank of another host", most);
  return made;
}

}  // namespace tutti::backend::tcp
