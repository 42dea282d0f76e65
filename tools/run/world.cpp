#include "run/world.hpp"

#include <map>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "common/exit_code.hpp"
#include "common/host.hpp"
#include "common/message.hpp"

namespace tutti::tool {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankInfo, rank, host, pid, device, cpuset, model)

namespace {

/// The host and process of a rank, sent to rank 0.
struct Arrival {
  RankInfo info{};
  std::vector<int> cpus{};
  std::string plan{};
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Arrival, info, cpus, plan)

}  // namespace

World collect_world(Rank& rank, Control& control, bool threads, std::string_view plan) {
  const Host host = this_host();
  const Arrival mine{{rank.group.rank(), host.name, host.pid,
                      to_string(rank.group.memory().device()), host.cpuset, host.model},
                     host.cpus,
                     std::string(plan)};
  World world;
  world.size = rank.group.size();
  world.threads = threads;
  struct Shared {
    int ranks = 0;
    std::set<int> cpus{};  // A launcher may have bound the ranks to separate CPUs.
  };
  std::map<std::string, Shared> hosts;
  for (const std::string& text : control.collect(to_message(mine))) {
    const auto arrival = from_message<Arrival>(text);
    if (arrival.plan != plan)
      throw Failure(Exit::usage,
                    fmt::format("rank {} was started with other options than rank 0: give every "
                                "rank the same options and files",
                                arrival.info.rank));
    Shared& shared = hosts[arrival.info.host];
    ++shared.ranks;
    shared.cpus.insert(arrival.cpus.begin(), arrival.cpus.end());
    world.ranks.push_back(arrival.info);
  }
  if (hosts.empty()) return world;  // Only rank 0 receives the arrivals.
  world.hosts = static_cast<int>(hosts.size());
  world.cpus = static_cast<int>(hosts[host.name].cpus.size());
  for (const auto& [name, shared] : hosts)
    world.oversubscribed = world.oversubscribed || shared.ranks > std::ssize(shared.cpus);
  return world;
}

}  // namespace tutti::tool
