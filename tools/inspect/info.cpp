#include "inspect/info.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <tutti/backend/backend.hpp>
#include <tutti/version.hpp>

#include "common/build.hpp"
#include "common/host.hpp"
#include "common/text.hpp"

namespace tutti::tool {
namespace {

constexpr Device cpu{DeviceType::cpu, 0};
constexpr Device cuda{DeviceType::cuda, 0};

std::string_view word(Device device) {
  return device.type == DeviceType::cpu ? "cpu" : "cuda";
}

struct BackendState {
  std::string_view name;
  const BackendEntry* entry = nullptr;  ///< Null: not built.
  std::string unavailable{};

  bool serves(Device device) const { return entry != nullptr && entry->serves(device); }
  bool stages(Device device) const {
    return entry != nullptr && entry->stages != nullptr && entry->stages(device);
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

/// What "auto" means for a device and for ranks that are processes, or threads of one.
struct Auto {
  std::string device;
  std::string ranks;
  std::string name{};  ///< Empty: nothing serves it.
  std::string because{};
};
std::vector<Auto> auto_choices() {
  std::vector<Auto> choices;
  for (const Device device : {cpu, cuda})
    for (const bool threads : {false, true}) {
      Auto choice{std::string(word(device)), threads ? "threads" : "processes"};
      try {
        const BackendChoice found = choose_backend("auto", device, threads);
        choice.name = found.entry->name;
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

}  // namespace

std::string info_text() {
  const Host host = this_host();
  std::string text;
  text += fmt::format("tutti     {} (library {}, git {})\n", version_text(header_version),
                      library_version_string(), git_version());
  if (!(header_version == library_version()))
    text += "          the tool and the library come from different versions\n";
  text += fmt::format("build     {}, {}\n", build_type(), compiler());
  text += fmt::format("host      {}, {} CPU{} ({}){}{}\n", host.name, host.cpus.size(),
                      host.cpus.size() == 1 ? "" : "s", host.cpuset, host.model.empty() ? "" : ", ",
                      host.model);
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
  for (const Auto& choice : auto_choices())
    text += fmt::format("  {:<6}{:<11}{}: {}\n", choice.device, choice.ranks,
                        choice.name.empty() ? "nothing" : choice.name, choice.because);
  for (const BackendState& state : backend_states()) {
    if (state.entry == nullptr || state.entry->details == nullptr) continue;
    text += fmt::format("{}\n", state.name);
    const std::string details = state.entry->details();
    for (std::size_t at = 0, end = 0; at < details.size(); at = end + 1) {
      end = std::min(details.find('\n', at), details.size());
      text += fmt::format("  {}\n", std::string_view(details).substr(at, end - at));
    }
  }
  return text;
}

std::string info_json() {
  using Json = nlohmann::ordered_json;
  const Host host = this_host();
  Json json;
  json["tool"] = {{"name", "tutti"},
                  {"version", version_text(header_version)},
                  {"git", git_version()},
                  {"build", fmt::format("{} {}", build_type(), compiler())}};
  json["library"] = {{"version", library_version_string()},
                     {"matches", header_version == library_version()}};
  json["host"] = {{"name", host.name},
                  {"cpus", host.cpus.size()},
                  {"cpuset", host.cpuset},
                  {"model", host.model},
                  {"last_level_cache_bytes", host.last_level_cache_bytes}};
  json["backends"] = Json::array();
  for (const BackendState& state : backend_states()) {
    const bool built = state.entry != nullptr;
    Json entry{{"name", state.name}, {"built", built}};
    entry["available"] = built && state.unavailable.empty();
    entry["unavailable_because"] = !built                      ? Json("not in this build")
                                   : state.unavailable.empty() ? Json(nullptr)
                                                               : Json(state.unavailable);
    entry["summary"] = built ? Json(state.entry->summary) : Json(nullptr);
    entry["devices"] = built && state.entry->device_count != nullptr
                           ? Json(state.entry->device_count())
                           : Json(nullptr);
    entry["serves"] = Json::array();
    entry["stages"] = Json::array();
    for (const Device device : {cpu, cuda}) {
      if (state.serves(device)) entry["serves"].push_back(word(device));
      if (state.stages(device)) entry["stages"].push_back(word(device));
    }
    json["backends"].push_back(std::move(entry));
  }
  json["auto"] = Json::array();
  for (const Auto& choice : auto_choices())
    json["auto"].push_back({{"device", choice.device},
                            {"ranks", choice.ranks},
                            {"backend", choice.name.empty() ? Json(nullptr) : Json(choice.name)},
                            {"because", choice.because}});
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace tutti::tool
