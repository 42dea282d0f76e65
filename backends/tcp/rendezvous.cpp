#include "rendezvous.hpp"

#include <algorithm>
#include <cstdint>
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

/// TUTTI_TCP_CONNECTIONS: the connections to a rank of another host.
int wanted_connections() {
  const auto number =
      internal::environment_number("TUTTI_TCP_CONNECTIONS", 4, Links::most_connections);
  return static_cast<int>(std::max<std::int64_t>(number, 1));
}

/// The data that a rank publishes in the store for its peers.
struct PeerInfo {
  mesh::Interface interface {};
  int port = 0;
  int connections = 1;
  bool encrypts = false;
};

Bytes encode(const PeerInfo& info) {
  internal::Writer out;
  write(out, info.interface);
  out.i32(info.port).i32(info.connections).u8(info.encrypts ? 1 : 0);
  return out.take();
}

PeerInfo decode(std::span<const std::byte> bytes, int rank) {
  const auto what = fmt::format("tcp: the address of rank {} in the store", rank);
  internal::Reader in(bytes, Errc::backend, what);
  PeerInfo info{.interface = mesh::read_interface(in)};
  info.port = in.i32();
  info.connections = in.i32();
  info.encrypts = in.u8() != 0;
  in.end();
  return info;
}

/// TUTTI_TLS: the connections are encrypted. @throws Error unsupported without OpenSSL or a token.
bool wants_encryption(const Store& store) {
  if (!internal::environment_switch("TUTTI_TLS", false)) return false;
  if (!internal::crypto::available)
    fail(Errc::unsupported,
         "TUTTI_TLS is 1, and this tutti was built without OpenSSL; build it with "
         "-Dopenssl=enabled (package libssl-dev)");
  if (!internal::token_of(store))
    fail(Errc::unsupported,
         "TUTTI_TLS is 1, and the job has no token: the key would be sent in clear; set "
         "TUTTI_TOKEN_FILE to a file with the same secret on every host, or start the ranks with "
         "tutti run");
  return true;
}

}  // namespace

mesh::Connected<Links> rendezvous(const BackendInit& init, std::function<void(int peer)> ended) {
  internal::Rendezvous rendezvous(init);
  const auto locations = internal::locations_of(init, rendezvous);
  const auto interface = mesh::interface_of(init);
  const Listener listener(interface.address);
  const bool encrypts = wants_encryption(*rendezvous.store());
  auto secret = mesh::secret_of(rendezvous, "tcp");
  const PeerInfo own{interface, listener.port(), wanted_connections(), encrypts};
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
    const auto& there = *locations[r];
    const bool is_near = there.shares_loopback(here) && there.host == here.host;
    // One connection is enough where there is no delay.
    const int count = is_near ? 1 : std::min(own.connections, info.connections);
    if (r != me) most = std::max(most, count);
    // The zone of a link-local address is an interface of the host that connects to it.
    auto& address = info.interface.address;
    if (const auto zone = address.find('%'); zone != std::string::npos && !is_near)
      address.replace(zone + 1, std::string::npos, interface.name);
    interfaces.push_back(info.interface);
    addresses.push_back({address, info.port, count});
    if (there.identity.boot == here.identity.boot) cores.push_back(there.cores);
    if (there.serves_store) made.server = static_cast<int>(r);
  }
  mesh::check_reachable(rendezvous.names(), locations, interfaces);
  auto channels = connect_all(rendezvous, listener, init.rank, addresses, secret, encrypts);
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
