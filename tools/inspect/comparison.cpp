#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "common/text.hpp"
#include "inspect/checkup.hpp"

namespace tutti::tool {

namespace {

bool is_there(const Checkup& rank) {
  return rank.pid != 0;
}

bool same(const CheckResult& a, const CheckResult& b) {
  return a.level == b.level && a.area == b.area && a.text == b.text && a.remedy == b.remedy;
}

/// "rank 1 (node2)", "ranks 0,2-3 (node1)".
std::string ranks_text(const std::vector<int>& ranks, const std::vector<Checkup>& all) {
  std::set<std::string> hosts;
  for (const int rank : ranks) hosts.insert(all[static_cast<std::size_t>(rank)].host);
  std::string text =
      fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", format_ranges(ranks));
  if (hosts.size() == 1) text += fmt::format(" ({})", *hosts.begin());
  return text;
}

void merge_checks(const std::vector<Checkup>& all, std::vector<CheckResult>& merged) {
  std::vector<std::vector<int>> owners;
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    for (const CheckResult& check : all[rank].checks) {
      const auto known = std::ranges::find_if(
          merged, [&](const CheckResult& other) { return same(check, other); });
      const auto index = static_cast<std::size_t>(known - merged.begin());
      if (known == merged.end()) {
        if (check.level <= Level::off && rank != 0) continue;
        merged.push_back(check);
        owners.emplace_back();
      }
      if (owners[index].empty() || owners[index].back() != static_cast<int>(rank))
        owners[index].push_back(static_cast<int>(rank));
    }
  for (std::size_t i = 0; i < merged.size(); ++i)
    if (std::ssize(owners[i]) != std::ranges::count_if(all, is_there))
      merged[i].ranks = format_ranges(owners[i]);
}

/// The ranks by their value of a fact; the first is the usual one.
std::vector<std::pair<std::optional<std::string>, std::vector<int>>> sides(
    const std::string& name, const std::vector<Checkup>& all) {
  std::vector<std::pair<std::optional<std::string>, std::vector<int>>> found;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!is_there(all[rank])) continue;
    std::optional<std::string> value;
    for (const Fact& fact : all[rank].facts)
      if (fact.name == name) value = fact.value;
    auto side =
        std::ranges::find_if(found, [&](const auto& other) { return other.first == value; });
    if (side == found.end()) side = found.insert(found.end(), {value, {}});
    side->second.push_back(static_cast<int>(rank));
  }
  std::ranges::stable_sort(
      found, [](const auto& a, const auto& b) { return a.second.size() > b.second.size(); });
  return found;
}

void compare_facts(const std::vector<Checkup>& all, std::vector<CheckResult>& merged) {
  std::map<std::string, Level> names;
  for (const Checkup& rank : all)
    for (const Fact& fact : rank.facts) names.emplace(fact.name, fact.level);
  for (const auto& [name, level] : names) {
    const auto found = sides(name, all);
    if (found.size() < 2) continue;
    std::string text;
    std::vector<int> odd;
    for (auto side = found.rbegin(); side != found.rend(); ++side) {
      text += fmt::format("{}{} on {}", text.empty() ? name + " is " : ", and ",
                          side->first ? fmt::format("'{}'", *side->first) : std::string("not set"),
                          ranks_text(side->second, all));
      if (side + 1 != found.rend()) odd.insert(odd.end(), side->second.begin(), side->second.end());
    }
    std::ranges::sort(odd);
    merged.push_back({level, "ranks", text, "Give every rank the same value", format_ranges(odd)});
  }
}

void compare_cpus(const std::vector<Checkup>& all, std::vector<CheckResult>& merged) {
  std::map<std::string, std::pair<std::vector<int>, std::set<int>>> hosts;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    auto& [ranks, cpus] = hosts[all[rank].host];
    ranks.push_back(static_cast<int>(rank));
    cpus.insert(all[rank].cpus.begin(), all[rank].cpus.end());
  }
  for (const auto& [host, both] : hosts) {
    const auto& [ranks, cpus] = both;
    if (cpus.empty() || ranks.size() <= cpus.size()) continue;
    merged.push_back({Level::warning, "cpu",
                      fmt::format("{} share {} of {}", plural(std::ssize(ranks), "rank"),
                                  plural(std::ssize(cpus), "CPU"), host),
                      "Start fewer ranks there, or let the launcher bind them to more CPUs "
                      "(mpirun --bind-to none)",
                      format_ranges(ranks)});
  }
}

}  // namespace

std::vector<CheckResult> compare(const std::vector<Checkup>& ranks) {
  std::vector<CheckResult> merged;
  merge_checks(ranks, merged);
  compare_facts(ranks, merged);
  compare_cpus(ranks, merged);
  return merged;
}

}  // namespace tutti::tool
