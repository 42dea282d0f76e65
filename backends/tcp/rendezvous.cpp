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
#include "mesh/sockets.hpp"
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
};

Bytes encode(const PeerInfo& info) {
  internal::Writer out;
  out.text(info.interface.name).text(info.interface.address).u8(info.interface.loopback ? 1 : 0);
  out.i32(info.port).i32(info.connections);
  return out.take();
}

PeerInfo decode(std::span<const std::byte> bytes, int rank) {
  const auto what = fmt::format("tcp: the address of rank {} in the store", rank);
  internal::Reader in(bytes, Errc::backend, what);
  PeerInfo info;
  info.interface.name = in.text();
  info.interface.address = in.text();
  info.interface.loopback = in.u8() != 0;
  info.port = in.i32();
  info.connections = in.i32();
  in.end();
  return info;
}

/// The secret of the group, which only clients of the store know.
internal::crypto::Digest secret_of(internal::Rendezvous& rendezvous) {
  internal::crypto::Digest secret;
  internal::crypto::random(secret);
  // The first byte says what the ranks do with it.
  constexpr auto way = static_cast<std::byte>(internal::crypto::available ? 1 : 0);
  Bytes mine(1 + secret.size(), way);
  std::ranges::copy(secret, mine.begin() + 1);
  auto chosen = rendezvous.publish_first("tcp/secret", mine);
  internal::crypto::erase(mine);
  if (chosen.size() != mine.size() || chosen[0] != way)
    internal::failf(Errc::unsupported,
                    "tcp: some ranks' tutti was built with OpenSSL and some without it; they "
                    "prove who they are in different ways");
  std::copy(chosen.begin() + 1, chosen.end(), secret.begin());
  internal::crypto::erase(chosen);
  return secret;
}

}  // namespace

Connections rendezvous(const BackendInit& init, std::function<void(int peer)> ended) {
  internal::Rendezvous rendezvous(init);
  const auto locations = internal::locations_of(init, rendezvous);
  const auto interface = mesh::interface_of(init);
  const Listener listener(interface.address);
  auto secret = secret_of(rendezvous);
  const PeerInfo own{interface, listener.port(), wanted_connections()};
  const auto infos = rendezvous.exchange("tcp/address", encode(own));

  const auto me = static_cast<std::size_t>(init.rank);
  const auto& here = *locations[me];
  Connections made;
  std::vector<mesh::Interface> interfaces;
  std::vector<PeerAddress> addresses;
  std::vector<internal::Cores> cores;
  int most = 1;
  for (std::size_t r = 0; r < infos.size(); ++r) {
    auto info = decode(infos[r], rendezvous.names()(static_cast<int>(r)));
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
  auto sockets = connect_all(rendezvous, listener, init.rank, addresses, secret);
  internal::crypto::erase(secret);
  for (std::size_t r = 0; r < sockets.size(); ++r)
    for (const auto& socket : sockets[r]) {
      const int descriptor = socket.get();
      if (init.dead_after.count() > 0) mesh::probe_idle({&descriptor, 1}, init.dead_after);
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
