#include "run/meet.hpp"

#include <map>
#include <set>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/exit_code.hpp"
#include "common/host.hpp"

namespace tutti::tool {

using Json = nlohmann::json;

World meet(Rank& rank, Control& control, bool threads, std::string_view plan) {
  const Host host = this_host();
  const Json mine{{"host", host.name},     {"pid", host.pid},
                  {"cpuset", host.cpuset}, {"model", host.model},
                  {"cpus", host.cpus},     {"device", to_string(rank.group.memory().device())},
                  {"plan", plan}};
  World world;
  world.size = rank.group.size();
  world.threads = threads;
  struct Shared {
    int ranks = 0;
    std::set<int> cpus{};  // A launcher may have bound each rank to some of its own.
  };
  std::map<std::string, Shared> hosts;
  for (const std::string& text :
       control.collect(mine.dump(-1, ' ', false, Json::error_handler_t::replace))) {
    const Json json = Json::parse(text);
    const RankInfo info{static_cast<int>(world.ranks.size()),
                        json.at("host").get<std::string>(),
                        json.at("pid").get<int>(),
                        json.at("device").get<std::string>(),
                        json.at("cpuset").get<std::string>(),
                        json.at("model").get<std::string>()};
    if (json.value("plan", std::string()) != plan)
      throw Failure(Exit::usage,
                    fmt::format("rank {} was told to compute something else than rank 0: give "
                                "every rank the same options",
                                info.rank));
    Shared& shared = hosts[info.host];
    ++shared.ranks;
    shared.cpus.merge(json.at("cpus").get<std::set<int>>());
    world.ranks.push_back(info);
  }
  if (hosts.empty()) return world;  // Only rank 0 knows.
  world.hosts = static_cast<int>(hosts.size());
  world.cpus = static_cast<int>(hosts[host.name].cpus.size());
  for (const auto& [name, shared] : hosts)
    world.oversubscribed = world.oversubscribed || shared.ranks > std::ssize(shared.cpus);
  return world;
}

}  // namespace tutti::tool
