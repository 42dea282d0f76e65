#include "settings.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>

#include <fmt/format.h>

#include "values/fail.hpp"

namespace tutti::backend::nccl {
namespace {

constexpr bool has_traffic_class = NCCL_VERSION_CODE >= NCCL_VERSION(2, 26, 0);
constexpr bool has_cta_policy = NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0);

struct Integer {
  std::string_view name;
  int Settings::*field;
};
constexpr Integer integers[] = {{"min_ctas", &Settings::min_ctas},
                                {"max_ctas", &Settings::max_ctas},
                                {"cga_cluster_size", &Settings::cga_cluster_size},
                                {"traffic_class", &Settings::traffic_class},
                                {"cta_policy", &Settings::cta_policy},
                                {"priority", &Settings::priority}};

int setting_value(std::string_view name, std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    internal::failf(Errc::invalid_argument,
                    "the setting '{}' of backend 'nccl' is '{}'; it must be "
                    "an integer",
                    name, text);
  return value;
}

}  // namespace

Settings Settings::of(std::string_view text) {
  Settings made;
  while (!text.empty()) {
    const auto one = text.substr(0, text.find(','));
    text.remove_prefix(std::min(one.size() + 1, text.size()));
    const auto name = one.substr(0, one.find('='));
    const auto value = name.size() == one.size() ? std::string_view() : one.substr(name.size() + 1);
    if (name == "net_name") {
      made.net_name = value;
      continue;
    }
    int* found = nullptr;
    for (const auto& known : integers)
      if (known.name == name) found = &(made.*known.field);
    if (found == nullptr)
      internal::failf(Errc::invalid_argument,
                      "backend 'nccl' has no setting '{}'; it has min_ctas, max_ctas, "
                      "cga_cluster_size, traffic_class, cta_policy, priority and net_name",
                      name);
    const bool lacks = (found == &made.traffic_class && !has_traffic_class) ||
                       (found == &made.cta_policy && !has_cta_policy);
    if (lacks)
      internal::failf(Errc::unsupported,
                      "the setting '{}' of backend 'nccl' needs a build with a newer nccl.h", name);
    *found = setting_value(name, value);
  }
  return made;
}

std::string Settings::of_communicators() const {
  std::string text;
  for (const auto& known : integers) {
    const int value = this->*known.field;
    if (known.field == &Settings::priority || value == NCCL_CONFIG_UNDEF_INT) continue;
    text += fmt::format("{}{}={}", text.empty() ? "" : ",", known.name, value);
  }
  if (!net_name.empty()) text += fmt::format("{}net_name={}", text.empty() ? "" : ",", net_name);
  return text;
}

ncclConfig_t Settings::config() const {
  ncclConfig_t made = NCCL_CONFIG_INITIALIZER;
  made.blocking = 0;
  made.minCTAs = min_ctas;
  made.maxCTAs = max_ctas;
  made.cgaClusterSize = cga_cluster_size;
  if (!net_name.empty()) made.netName = net_name.c_str();
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 26, 0)
  made.trafficClass = traffic_class;
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
  made.CTAPolicy = cta_policy;
  made.commName = name.c_str();
#endif
  return made;
}

}  // namespace tutti::backend::nccl
