#include "backend/rank_card.hpp"

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
  own.cards.clear();
  if (!cards.empty())
    for (const int r : split.ranks) own.cards.push_back(cards[static_cast<std::size_t>(r)]);
  return own;
}

}  // namespace tutti

namespace tutti::internal {

Bytes encode(const RankCard& card) {
  Writer out;
  const auto& host = card.identity;
  out.text(host.boot).text(host.network).text(host.processes).text(host.users).text(host.user);
  out.text(card.host).i32(card.process);
  write(out, card.cores);
  out.u8(card.serves_store ? 1 : 0).text(card.facts);
  return out.take();
}

namespace {

RankCard decode(const Bytes& bytes, int rank) {
  const auto what = fmt::format("the card of rank {} in the store", rank);
  Reader in(bytes, Errc::backend, what);
  RankCard card;
  auto& host = card.identity;
  for (auto* const text :
       {&host.boot, &host.network, &host.processes, &host.users, &host.user, &card.host})
    *text = in.text();
  card.process = in.i32();
  card.cores = read_cores(in);
  card.serves_store = in.u8() != 0;
  card.facts = in.text();
  in.end();
  return card;
}

}  // namespace

RankCard own_card(const Store& store, int rank) {
  return {.identity = host_identity(),
          .host = host_of(rank),
          .process = ::getpid(),
          .cores = usable_cores(),
          .serves_store = is_served_here(store)};
}

RankCards exchange_cards(Rendezvous& rendezvous, const RankCard& mine) {
  RankCards cards;
  for (const auto& bytes : rendezvous.exchange("cards", encode(mine))) {
    const int rank = rendezvous.names()(static_cast<int>(cards.size()));
    cards.push_back(std::make_shared<const RankCard>(decode(bytes, rank)));
  }
  return cards;
}

RankCards cards_of(const BackendInit& init, Rendezvous& rendezvous) {
  if (!init.cards.empty()) return init.cards;
  return exchange_cards(rendezvous, own_card(*init.store, rendezvous.names()(init.rank)));
}

}  // namespace tutti::internal
