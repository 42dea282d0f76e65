#include "backend/backend_choice.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "values/fail.hpp"

namespace [[gnu::visibility("default")]] tutti {

std::span<const std::string_view> known_backends() noexcept {
  static constexpr auto names = std::to_array<std::string_view>({
#include "known_backends.inc"
  });
  return names;
}

namespace {

std::string built() {
  std::string text;
  for (const auto& entry : backends()) text += fmt::format(" {}", entry.name);
  return text;
}

bool stages(const BackendEntry& entry, Device device) {
  return entry.stages != nullptr && entry.stages(device);
}

/// The reason why a backend cannot be used; empty if it can. `by_name`: the caller named the
/// backend, so it may also stage the arrays of the device.
std::string obstacle(const BackendEntry& entry, Device device, bool one_process, bool by_name) {
  if (auto why = entry.unavailable(); !why.empty()) return why;
  if (by_name && stages(entry, device)) return {};
  if (!entry.serves(device)) return fmt::format("it does not serve {}", to_string(device));
  if (entry.one_process && !one_process) return "its ranks are threads of one process";
  return {};
}

/// Advice for the error of "auto", which never chooses staging: the first backend that stages
/// arrays of this device. Empty if there is none.
std::string staging(Device device) {
  for (const auto& entry : backends())
    if (stages(entry, device) && entry.unavailable().empty())
      return fmt::format(
          "; pass backend = \"{}\" to stage arrays through host memory, which is slow", entry.name);
  return {};
}

}  // namespace

}  // namespace tutti

namespace tutti::internal {
namespace {

constexpr std::string_view beyond_tcp = "ucx beyond TCP";

const BackendEntry* find_entry(std::string_view name) {
  const auto found = std::ranges::find(backends(), name, &BackendEntry::name);
  return found == backends().end() ? nullptr : &*found;
}

/// The facts of one rank.
struct Facts {
  std::string host;
  bool takes_args = false;  // A rank passed "auto:args".
  /// By backend of the rank's build: the reason why the rank cannot use it; empty if it can.
  std::map<std::string, std::string, std::less<>> obstacles;
};

Facts read_facts(std::string_view text) {
  const auto line = [&] {
    const auto end = std::min(text.find('\n'), text.size());
    const auto found = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    return found;
  };
  Facts facts;
  facts.host = line();
  facts.takes_args = !line().empty();
  while (!text.empty()) {
    const auto name = line();
    facts.obstacles.emplace(name, line());
  }
  return facts;
}

/// A backend that "auto" may choose, and the backends that every rank needs for it.
struct Candidate {
  std::string_view name;
  std::string_view args;
  std::vector<std::string_view> needs;
  int ranks = 0;  // The most ranks among which it uses shared memory.

  std::string text() const { return fmt::format("{}{}{}", name, args.empty() ? "" : ":", args); }
};

/// The reason why these ranks cannot use a candidate; empty if they can.
std::string obstacle(const Candidate& candidate, std::span<const Facts> ranks) {
  for (const auto name : candidate.needs)
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      const auto& obstacles = ranks[r].obstacles;
      const auto found = obstacles.find(name);
      if (found == obstacles.end()) return fmt::format("rank {} has no {}", r, name);
      if (!found->second.empty()) return fmt::format("rank {}: {}", r, found->second);
    }
  const auto* shared = find_entry(candidate.needs.front());
  const int most = shared == nullptr ? 0 : shared->most_ranks;
  if (most == 0 || candidate.ranks <= most) return {};
  return fmt::format("{} ranks are on one host; it serves up to {}", candidate.ranks, most);
}

}  // namespace

bool is_chosen_together(std::string_view backend, Device device, bool one_process) noexcept {
  return backend_name(backend) == "auto" && device.type == DeviceType::cpu && !one_process;
}

std::string backend_facts(std::string_view host, std::string_view args) {
  auto text = fmt::format("{}\n{}", host, args);
  const auto add = [&](std::string_view name, std::string why) {
    std::ranges::replace(why, '\n', ' ');
    text += fmt::format("\n{}\n{}", name, why);
  };
  for (const auto& entry : backends()) {
    if (entry.one_process || !entry.serves({})) continue;
    auto why = entry.unavailable();
    if (why.empty() && entry.unsuited != nullptr) why = entry.unsuited();
    add(entry.name, why);
    if (entry.is_beyond_tcp != nullptr && why.empty())
      add(beyond_tcp, entry.is_beyond_tcp() ? "" : "its ucx has no faster network than TCP");
  }
  return text;
}

Decision decide_together(std::span<const std::string> facts) {
  std::vector<Facts> ranks;
  std::map<std::string, int> hosts;
  int crowd = 0;  // Ranks of the host that has most.
  bool takes_args = false;
  for (const auto& text : facts) {
    ranks.push_back(read_facts(text));
    crowd = std::max(crowd, ++hosts[ranks.back().host]);
    takes_args = takes_args || ranks.back().takes_args;
  }
  std::vector<Candidate> candidates;
  std::string served = "processes on a host each";
  // An argument of "auto" names the network interface.
  if (hosts.size() == 1) {
    served = "processes of one host";
    if (!takes_args) candidates.push_back({"shm", {}, {"shm"}, crowd});
  } else if (crowd > 1) {
    served = "processes of several hosts";
    if (!takes_args) {
      candidates.push_back({"hier", "shm+ucx", {"shm", "hier", "ucx", beyond_tcp}, crowd});
      candidates.push_back({"hier", "shm+tcp", {"shm", "hier", "tcp"}, crowd});
      candidates.push_back({"hier", "shm+gloo", {"shm", "hier", "gloo"}, crowd});
    }
  } else if (!takes_args) {
    candidates.push_back({"ucx", {}, {"ucx", beyond_tcp}});
  }
  candidates.push_back({"tcp", {}, {"tcp"}});
  candidates.push_back({"gloo", {}, {"gloo"}});
  if (takes_args) served += " and takes an argument";
  std::string tried = "local: its ranks are threads of one process";
  for (const auto& candidate : candidates) {
    const auto why = obstacle(candidate, ranks);
    if (why.empty())
      return {candidate.name, std::string(candidate.args),
              fmt::format("it is the first that serves {}; not {}", served, tried)};
    tried += fmt::format(", {}: {}", candidate.text(), why);
  }
  failf(Errc::unsupported, "no backend serves {} (not {})", served, tried);
}

BackendChoice choose_together(std::span<const std::string> facts, std::string_view args) {
  auto decision = decide_together(facts);
  return {find_entry(decision.backend), std::string(args.empty() ? decision.args : args),
          std::move(decision.reason)};
}

}  // namespace tutti::internal

namespace [[gnu::visibility("default")]] tutti {

BackendChoice choose_backend(std::string_view backend, Device device, RankPlacement placement) {
  const auto name = internal::backend_name(backend);
  const std::string args(internal::backend_args(backend));
  const bool threads = placement == RankPlacement::threads;
  if (internal::is_chosen_together(backend, device, threads)) {
    const auto on = [&](const char* host) { return internal::backend_facts(host, args); };
    switch (placement) {
      case RankPlacement::threads:
      case RankPlacement::host:
        return internal::choose_together(std::array{on("a"), on("a")}, args);
      case RankPlacement::hosts:
        return internal::choose_together(std::array{on("a"), on("a"), on("b"), on("b")}, args);
      case RankPlacement::apart:
        return internal::choose_together(std::array{on("a"), on("b")}, args);
    }
  }
  if (name == "auto") {
    std::string tried;
    for (const auto& entry : backends()) {
      const auto why = obstacle(entry, device, threads, false);
      if (why.empty())
        return {&entry, args,
                fmt::format("it is the first that serves {}{}", to_string(device),
                            tried.empty() ? "" : "; not " + tried)};
      tried += fmt::format("{}{}: {}", tried.empty() ? "" : ", ", entry.name, why);
    }
    internal::failf(Errc::unsupported, "no backend serves {} here ({}){}", to_string(device), tried,
                    staging(device));
  }
  for (const auto& entry : backends()) {
    if (entry.name != name) continue;
    if (const auto why = obstacle(entry, device, true, true); !why.empty())
      internal::failf(Errc::unsupported, "backend '{}' cannot be used: {}", name, why);
    return {&entry, args, "it was asked for by name"};
  }
  if (std::ranges::find(known_backends(), name) != known_backends().end())
    internal::failf(Errc::unsupported, "backend '{}' is not in this build, which has:{}", name,
                    built());
  internal::failf(Errc::invalid_argument, "unknown backend '{}'; known are auto, {}", name,
                  fmt::join(known_backends(), ", "));
}

}  // namespace tutti
