#include "inspect/inspect.hpp"

#include <algorithm>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <tutti/backend/backend_table.hpp>
#include <tutti/version.hpp>

#include "common/build.hpp"
#include "common/host.hpp"
#include "common/text.hpp"
#include "report/json.hpp"
#include "report/record.hpp"

namespace tutti::tool {

void describe(Fields& fields, const Host& host) {
  fields("name", host.name);
  fields("cpus", std::ssize(host.cpus));
  fields("cpuset", host.cpuset);
  fields("model", host.model);
  fields("last_level_cache_bytes", host.last_level_cache_bytes);
}

namespace {

constexpr Device cpu{DeviceType::cpu, 0};
constexpr Device cuda{DeviceType::cuda, 0};

std::string_view word(Device device) {
  return device.type == DeviceType::cpu ? "cpu" : "cuda";
}

struct BackendState {
  std::string_view name{};
  const BackendEntry* entry = nullptr;  ///< Null: not built.
  std::string unavailable{};

  bool serves(Device device) const { return entry != nullptr && entry->serves(device); }
  bool stages(Device device) const {
    return entry != nullptr && entry->stages != nullptr && entry->stages(device);
  }

  /// The lines of BackendEntry::details().
  std::vector<std::string> details() const {
    std::vector<std::string> lines;
    if (entry == nullptr || entry->details == nullptr) return lines;
    std::istringstream text(entry->details());
    for (std::string line; std::getline(text, line);) lines.push_back(line);
    return lines;
  }

  std::string devices() const {
    std::string text;
    for (const Device device : {cpu, cuda})
      if (serves(device) || stages(device))
        text += fmt::format("{}{}{}", text.empty() ? "" : " ", word(device),
                            serves(device) ? "" : " (staged)");
    return text;
  }
};

std::vector<BackendState> backend_states() {
  std::vector<BackendState> states;
  for (const std::string_view name : known_backends()) {
    BackendState state{name, nullptr, {}};
    for (const BackendEntry& entry : backends())
      if (entry.name == name) state.entry = &entry;
    if (state.entry != nullptr) state.unavailable = state.entry->unavailable();
    states.push_back(std::move(state));
  }
  return states;
}

/// The choice of "auto" for a device and a placement of the ranks.
struct Auto {
  std::string device{};
  std::string ranks{};
  std::string name{};  ///< Empty: no backend serves it.
  std::string because{};
};
std::vector<Auto> auto_choices() {
  std::vector<Auto> choices;
  constexpr std::pair<RankPlacement, std::string_view> placements[] = {
      {RankPlacement::threads, "threads"},
      {RankPlacement::host, "processes of one host"},
      {RankPlacement::hosts, "processes of several hosts"},
      {RankPlacement::apart, "a process on each host"}};
  for (const Device device : {cpu, cuda})
    for (const auto& [placement, ranks] : placements) {
      Auto choice{std::string(word(device)), std::string(ranks)};
      try {
        const BackendChoice found = choose_backend("auto", device, placement);
        choice.name = found.entry->name;
        if (!found.args.empty()) choice.name += ":" + found.args;
        choice.because = found.because;
      } catch (const Error& error) {
        choice.because = error.message();
      }
      choices.push_back(std::move(choice));
    }
  return choices;
}

std::string version_text(const Version& version) {
  return fmt::format("{}.{}.{}", version.major, version.minor, version.patch);
}

void describe(Fields& fields, const Auto& choice) {
  fields("device", choice.device);
  fields("ranks", choice.ranks);
  fields("backend", choice.name.empty() ? std::nullopt : std::optional(choice.name));
  fields("because", choice.because);
}

void describe(Fields& fields, const BackendState& state) {
  const bool built = state.entry != nullptr;
  std::optional<std::string> why;
  if (!built) why = "not in this build";
  if (!state.unavailable.empty()) why = state.unavailable;
  std::optional<std::string> summary;
  if (built) summary = state.entry->summary;
  std::optional<int> devices;
  if (built && state.entry->device_count != nullptr) devices = state.entry->device_count();
  std::vector<std::string> serves;
  std::vector<std::string> stages;
  for (const Device device : {cpu, cuda}) {
    if (state.serves(device)) serves.emplace_back(word(device));
    if (state.stages(device)) stages.emplace_back(word(device));
  }
  fields("name", state.name);
  fields("built", built);
  fields("available", built && state.unavailable.empty());
  fields("unavailable_because", why);
  fields("summary", summary);
  fields("devices", devices);
  fields("serves", serves);
  fields("stages", stages);
  fields("details", state.details());
}

}  // namespace

std::string info_text() {
  const Host host = this_host();
  std::string text;
  text += fmt::format("tutti     {} (library {}, git {})\n", version_text(header_version),
                      library_version_string(), git_version());
  if (!(header_version == library_version()))
    text += "          the tool and the library come from different versions\n";
  text += fmt::format("build     {}, {}\n", build_type(), compiler());
  text +=
      fmt::format("host      {}, {} ({}){}{}\n", host.name, plural(std::ssize(host.cpus), "CPU"),
                  host.cpuset, host.model.empty() ? "" : ", ", host.model);
  text += "backends\n";
  for (const BackendState& state : backend_states()) {
    const std::string_view status = state.entry == nullptr       ? "not built"
                                    : !state.unavailable.empty() ? "built, unavailable"
                                                                 : "available";
    text += fmt::format("  {:<8}{:<20}", state.name, status);
    if (state.entry != nullptr)
      text += fmt::format("{}: {}", state.devices(), state.entry->summary);
    if (!state.unavailable.empty()) text += fmt::format(" ({})", state.unavailable);
    text.erase(text.find_last_not_of(' ') + 1);
    text += "\n";
  }
  text += "auto\n";
  std::vector<Auto> choices = auto_choices();
  for (std::size_t i = 0; i + 1 < choices.size();) {
    const auto& next = choices[i + 1];
    if (choices[i].device != next.device || choices[i].because != next.because) {
      ++i;
      continue;
    }
    // One line for the reason that there is none.
    choices[i].ranks = "all ranks";
    choices.erase(choices.begin() + static_cast<std::ptrdiff_t>(i) + 1);
  }
  for (const Auto& choice : choices)
    text += fmt::format("  {:<6}{:<28}{}: {}\n", choice.device, choice.ranks,
                        choice.name.empty() ? "nothing" : choice.name, choice.because);
  for (const BackendState& state : backend_states()) {
    const auto details = state.details();
    if (!details.empty()) text += fmt::format("{}\n", state.name);
    for (const auto& line : details) text += fmt::format("  {}\n", line);
  }
  return text;
}

std::string info_json() {
  return to_json(Fields::object([](Fields& fields) {
    fields("tool", Tool{version_text(header_version)});
    fields("library", [](Fields& library) {
      library("version", library_version_string());
      library("matches", header_version == library_version());
    });
    fields("host", this_host());
    fields("backends", backend_states());
    fields("auto", auto_choices());
  }));
}

}  // namespace tutti::tool
