#include "backend/rank_place.hpp"

#include <unistd.h>

#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include "backend/rendezvous.hpp"
#include "store/served_here.hpp"

namespace tutti {

BackendInit BackendInit::part(const SplitInit& split) const {
  BackendInit own = *this;
  own.store = split.store;
  own.rank = split.rank;
  own.size = static_cast<int>(split.ranks.size());
  own.name = split.name;
  own.whole = split.whole;
  own.adopt.reset();
  own.places.clear();
  if (!places.empty())
    for (const int r : split.ranks) own.places.push_back(places[static_cast<std::size_t>(r)]);
  return own;
}

}  // namespace tutti

namespace tutti::internal {

Bytes encode(const RankPlace& place) {
  Writer out;
  const auto& host = place.identity;
  out.text(host.boot).text(host.network).text(host.processes).text(host.users).text(host.user);
  out.text(place.host).i32(place.process);
  write(out, place.cores);
  out.u8(place.serves_store ? 1 : 0).text(place.facts);
  return out.take();
}

namespace {

RankPlace decode(const Bytes& bytes, int rank) {
  const auto what = fmt::format("the place of rank {} in the store", rank);
  Reader in(bytes, Errc::backend, what);
  RankPlace place;
  auto& host = place.identity;
  for (auto* const text :
       {&host.boot, &host.network, &host.processes, &host.users, &host.user, &place.host})
    *text = in.text();
  place.process = in.i32();
  place.cores = read_cores(in);
  place.serves_store = in.u8() != 0;
  place.facts = in.text();
  in.end();
  return place;
}

}  // namespace

RankPlace own_place(const Store& store, int rank) {
  return {.identity = host_identity(),
          .host = host_of(rank),
          .process = ::getpid(),
          .cores = usable_cores(),
          .serves_store = is_served_here(store)};
}

RankPlaces exchange_places(Rendezvous& rendezvous, const RankPlace& mine) {
  RankPlaces places;
  for (const auto& bytes : rendezvous.exchange("places", encode(mine))) {
    const int rank = rendezvous.names()(static_cast<int>(places.size()));
    places.push_back(std::make_shared<const RankPlace>(decode(bytes, rank)));
  }
  return places;
}

RankPlaces places_of(const BackendInit& init, Rendezvous& rendezvous) {
  if (!init.places.empty()) return init.places;
  return exchange_places(rendezvous, own_place(*init.store, rendezvous.names()(init.rank)));
}

}  // namespace tutti::internal
