#include "config.hpp"

#include <cstdlib>
#include <string>

#include <fmt/format.h>

namespace tutti::backend::ucx {
namespace {

bool is_set(std::string_view name) {
  return std::getenv(fmt::format("UCX_{}", name).c_str()) != nullptr;
}

/// True if UCX may use TCP with this value of UCX_TLS.
bool has_tcp(std::string_view list) {
  const bool named = list.find("tcp") != list.npos;
  if (list.starts_with('^')) return !named;
  return named || list.empty() || list.find("all") != list.npos;
}

}  // namespace

Config::Config(const UcxApi& api) : api_(api) {
  check(api, api.config_read(nullptr, nullptr, &config_), "ucp_config_read");
}

Config::Config(const UcxApi& api, std::string_view transports) : Config(api) {
  std::string list(transports);
  if (!list.empty())
    check(api, api.config_modify(config_, "TLS", list.c_str()),
          fmt::format("setting UCX_TLS to {}", list));
  else if (const char* const text = std::getenv("UCX_TLS"); text != nullptr)
    list = text;
  if (!is_set("KEEPALIVE_INTERVAL"))
    check(api, api.config_modify(config_, "KEEPALIVE_INTERVAL", "1s"),
          "setting UCX_KEEPALIVE_INTERVAL");
  // UCX sends large messages over TCP in segments of this size if it detects failures; its default
  // of 64 KiB costs a fifth of the rate. A segment holds a message of 512 KiB and its headers. UCX
  // 1.13 knows the option by the name without TCP_, newer ones by the name with it, older ones not
  // at all.
  constexpr const char* segment = "528k";
  if (has_tcp(list) && !is_set("TCP_RX_SEG_SIZE") &&
      api.config_modify(config_, "RX_SEG_SIZE", segment) != UCS_OK)
    (void)api.config_modify(config_, "TCP_RX_SEG_SIZE", segment);
}

}  // namespace tutti::backend::ucx
