#include "levels.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "backend/call_history.hpp"
#include "backend/host_calls.hpp"
#include "values/fail.hpp"

namespace tutti::backend::hier {
namespace {

constexpr std::uint64_t first_number(const Call& call) noexcept {
  return call.seq << part_bits;
}

std::unique_ptr<Backend> make_part(const BackendInit& init, const Part& part, std::string prefix,
                                   std::string name, int rank,
                                   std::shared_ptr<const WholeGroup> whole) {
  BackendInit own = init.part({.ranks = whole->ranks,
                               .rank = rank,
                               .name = std::move(name),
                               .store = make_prefix_store(init.store, std::move(prefix)),
                               .whole = whole});
  own.args = part.args;
  return part.entry->make(own);
}

}  // namespace

WholeGroup whole_group(const BackendInit& init) {
  return {.name = init.name,
          .store = init.store,
          .part_bits = part_bits,
          .history = std::make_shared<internal::CallHistory>(init.name, init.rank)};
}

std::shared_ptr<const WholeGroup> whole_of(const WholeGroup& whole, std::vector<int> ranks,
                                           bool between_hosts) {
  auto own = std::make_shared<WholeGroup>(whole);
  own->ranks = std::move(ranks);
  own->between_hosts = between_hosts;
  return own;
}

Topology::Topology(std::vector<int> hosts, int rank)
    : hosts_(std::move(hosts)),
      rank_(rank),
      ranks_(static_cast<std::size_t>(*std::ranges::max_element(hosts_)) + 1) {
  for (int r = 0; r < size(); ++r) {
    auto& host = ranks_[static_cast<std::size_t>(host_of(r))];
    places_.push_back(static_cast<int>(host.size()));
    host.push_back(r);
  }
  lanes_ = static_cast<int>(std::ranges::min_element(ranks_, {}, &std::vector<int>::size)->size());
}

std::vector<int> Topology::lane() const {
  std::vector<int> ranks;
  for (const auto& host : ranks_) ranks.push_back(host[static_cast<std::size_t>(place())]);
  return ranks;
}

int Topology::most_on_a_host() const noexcept {
  return static_cast<int>(std::ranges::max_element(ranks_, {}, &std::vector<int>::size)->size());
}

Level::Level(std::unique_ptr<Backend> backend)
    : backend_(std::move(backend)), host_(dynamic_cast<HostBackend*>(backend_.get())) {
  if (host_ == nullptr)
    internal::failf(Errc::unsupported,
                    "hier is made of backends that order their calls as HostBackend does, such as "
                    "shm and gloo");
}

void Level::begin(const Call& call) noexcept {
  next_ = first_number(call);
  HostBackend::Calls::of(*host_).queue()->skip_to(next_);
}

Call Level::part(const Call& call, std::uint64_t number) const noexcept {
  Call own = call;
  own.seq = number;
  own.in_order = false;
  return own;
}

Call Level::next(const Call& call, bool blocking) noexcept {
  Call own = part(call, next_++);
  own.blocking = blocking;
  return own;
}

void Level::run(const Op& op, const Call& call) {
  backend_->launch({&op, 1}, next(call, true)).wait();
}

std::shared_ptr<WorkState> Level::start(const Op& op, const Call& call) {
  return backend_->launch({&op, 1}, next(call, false)).release();
}

void Level::refuse(const Call& call, const Error& why) noexcept {
  refuse(first_number(call), call, why);
}

void Level::refuse(std::uint64_t number, const Call& call, const Error& why) noexcept {
  const Op op;
  backend_->refuse({&op, 1}, part(call, number), why);
}

void Level::fail(const Error& why) noexcept {
  const auto& fail_with = HostBackend::Calls::of(*host_).fail_with;
  // The calls of peers end with other causes once they have asked the hier group. Who is lost is
  // known here, perhaps without a store.
  if (fail_with && why.code() == Errc::peer_lost)
    fail_with(why);
  else
    backend_->abort(why.message());
}

void Level::on_failure(std::function<void(const Error& why)> listener) {
  HostBackend::Calls::of(*host_).queue()->on_failure(std::move(listener));
}

bool Level::leave(const Call& call, const Error& why) noexcept {
  const auto first = first_number(call);
  const auto& leave_parts = HostBackend::Calls::of(*host_).leave_parts;
  return next_ == first || !leave_parts || leave_parts(part(call, first), why);
}

std::optional<Error> Levels::failure() const {
  std::optional<Error> found;
  for_each([&](const Level& level) {
    auto failure = level.backend().failure();
    if (failure && (!found || names_ranks(*failure))) found = std::move(failure);
  });
  return found;
}

std::string inner_name(const BackendInit& init, const Topology& topology) {
  return fmt::format("{}/host{}", init.name, topology.host());
}

std::string inner_prefix(const Topology& topology) {
  return fmt::format("hier/host/{}/", topology.host());
}

Levels make_levels(const BackendInit& init, const WholeGroup& whole, const Part& inner,
                   const Part& outer, std::vector<int> hosts, Made made) {
  Levels levels(Topology(std::move(hosts), init.rank));
  const auto& topology = levels.topology;
  const auto& here = topology.ranks_of(topology.host());
  if (made.inner == nullptr)
    made.inner = make_part(init, inner, inner_prefix(topology), inner_name(init, topology),
                           topology.place(), whole_of(whole, here, false));
  levels.inner = std::make_unique<Level>(std::move(made.inner));
  if (topology.hosts() == 1) return levels;
  std::vector<int> all(static_cast<std::size_t>(init.size));
  std::iota(all.begin(), all.end(), 0);
  auto& flat = made.flat;
  if (flat == nullptr)
    flat = make_part(init, outer, "hier/flat/", init.name, init.rank,
                     whole_of(whole, std::move(all), true));
  if (topology.in_lane()) {
    const auto ranks = topology.lane();
    const auto of_lane = whole_of(whole, ranks, true);
    for (std::size_t i = 0; i < levels.lane.size(); ++i) {
      const auto name = fmt::format("{}/lane{}.{}", init.name, topology.place(), i);
      const auto prefix = fmt::format("hier/lane/{}.{}/", topology.place(), i);
      auto lane = flat->split({.ranks = ranks,
                               .rank = topology.host(),
                               .name = name,
                               .store = make_prefix_store(init.store, prefix),
                               .whole = of_lane});
      if (lane == nullptr) lane = make_part(init, outer, prefix, name, topology.host(), of_lane);
      levels.lane[i] = std::make_unique<Level>(std::move(lane));
    }
  }
  levels.flat = std::make_unique<Level>(std::move(flat));
  return levels;
}

}  // namespace tutti::backend::hier
