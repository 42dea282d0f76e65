#include "backend/rank_location.hpp"

#include <unistd.h>

#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include "backend/rendezvous.hpp"
#include "store/served_store.hpp"

namespace tutti {

BackendInit BackendInit::part(const SplitInit& split) const {
  BackendInit own = *this;
  own.store = split.store;
  own.rank = split.rank;
  own.size = static_cast<int>(split.ranks.size());
  own.name = split.name;
  own.whole = split.whole;
  own.adopt.reset();
  own.locations.clear();
  if (!locations.empty())
    for (const int r : split.ranks) own.locations.push_back(locations[static_cast<std::size_t>(r)]);
  return own;
}

}  // namespace tutti

namespace tutti::internal {

Bytes encode(const RankLocation& location) {
  Writer out;
  const auto& host = location.identity;
  out.text(host.boot).text(host.network).text(host.processes).text(host.users).text(host.user);
  out.u8(host.sees_peers ? 1 : 0).text(location.host).text(location.address);
  out.i32(location.process);
  write(out, location.cores);
  out.u8(location.serves_store ? 1 : 0).text(location.facts);
  return out.take();
}

namespace {

RankLocation decode(const Bytes& bytes, int rank) {
  const auto what = fmt::format("the location of rank {} in the store", rank);
  Reader in(bytes, Errc::backend, what);
  RankLocation location;
  auto& host = location.identity;
  for (auto* const text : {&host.boot, &host.network, &host.processes, &host.users, &host.user})
    *text = in.text();
  host.sees_peers = in.u8() != 0;
  location.host = in.text();
  location.address = in.text();
  location.process = in.i32();
  location.cores = read_cores(in);
  location.serves_store = in.u8() != 0;
  location.facts = in.text();
  in.end();
  return location;
}

}  // namespace

RankLocation own_location(const Store& store, int rank) {
  return {.identity = host_identity(),
          .host = host_of(rank),
          .address = store.local_address(),
          .process = ::getpid(),
          .cores = usable_cores(),
          .serves_store = is_served_here(store)};
}

RankLocations exchange_locations(Rendezvous& rendezvous, const RankLocation& mine) {
  RankLocations locations;
  for (const auto& bytes : rendezvous.exchange("locations", encode(mine))) {
    const int rank = rendezvous.names()(static_cast<int>(locations.size()));
    locations.push_back(std::make_shared<const RankLocation>(decode(bytes, rank)));
  }
  return locations;
}

RankLocations locations_of(const BackendInit& init, Rendezvous& rendezvous) {
  if (!init.locations.empty()) return init.locations;
  return exchange_locations(rendezvous, own_location(*init.store, rendezvous.names()(init.rank)));
}

}  // namespace tutti::internal
