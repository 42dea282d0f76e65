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
#include "values/bytes.hpp"
#include "values/environment_switch.hpp"

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
};

Bytes encode(const PeerInfo& info) {
  internal::Writer out;
  write(out, info.interface);
  out.i32(info.port).i32(info.connections);
  return out.take();
}

PeerInfo decode(std::span<const std::byte> bytes, int rank) {
  const auto what = fmt::format("tcp: the address of rank {} in the store", rank);
  internal::Reader in(bytes, Errc::backend, what);
  PeerInfo info{.interface = mesh::read_interface(in)};
  info.port = in.i32();
  info.connections = in.i32();
  in.end();
  return info;
}

}  // namespace

mesh::Connected<Links> rendezvous(const BackendInit& init, std::function<void(int peer)> ended) {
  internal::Rendezvous rendezvous(init);
  const auto locations = internal::locations_of(init, rendezvous);
  const auto interface = mesh::interface_of(init);
  const Listener listener(interface.address);
  auto secret = mesh::secret_of(rendezvous, "tcp");
  const PeerInfo own{interface, listener.port(), wanted_connections()};
  const auto infos = rendezvous.exchange("tcp/address", encode(own));

  const auto me = static_cast<std::size_t>(init.rank);
  const auto& here = *locations[me];
  mesh::Connected<Links> made;
  std::vector<mesh::Interface> interfaces;
  std::vector<PeerAddress> addresses;
  std::vector<internal::Cores> cores;
  int most = 1;
  for (std::size_t r = 0; r < infos.size(); ++r) {
    const auto info = decode(infos[r], rendezvous.names()(static_cast<int>(r)));
    const auto& there = *locations[r];
    const bool is_near = there.shares_loopback(here) && there.host == here.host;
    // One connection is enough where there is no delay.
    const int count = is_near ? 1 : std::min(own.connections, info.connections);
    if (r != me) most = std::max(most, count);
    interfaces.push_back(info.interface);
    addresses.push_back({info.interface.address, info.port, count});
    if (there.identity.boot == here.identity.boot) cores.push_back(there.cores);
    if (there.serves_store) made.server = static_cast<int>(r);
  }
  mesh::check_reachable(rendezvous.names(), locations, interfaces);
  auto sockets = connect_all(rendezvous, listener, init.rank, addresses, secret);
  internal::crypto::erase(secret);
  for (std::size_t r = 0; r < sockets.size(); ++r)
    for (const auto& socket : sockets[r]) {
      const int descriptor = socket.get();
      if (init.dead_after.count() > 0) mesh::probe_idle(descriptor, init.dead_after);
      if (locations[r]->identity.boot == here.identity.boot) mesh::use_reno(descriptor);
    }
  made.links =
      std::make_shared<Links>(std::move(sockets), init.checked, init.dead_after, std::move(ended));
  made.links->set_polling(cores.size(), internal::count_cores(cores));
  made.transport = most == 1 ? fmt::format("tcp/{}", interface.name)
                             : fmt::format("tcp/{}, {} connections to a rank of another host",
                                           interface.name, most);
  return made;
}

}  // namespace tutti::backend::tcp
