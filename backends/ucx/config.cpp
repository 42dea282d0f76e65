#include "config.hpp"

#include <ifaddrs.h>
#include <net/if.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

namespace tutti::backend::ucx {
namespace {

bool is_set(std::string_view name) {
  return std::getenv(fmt::format("UCX_{}", name).c_str()) != nullptr;
}

/// True for a UCX that completes a send without a copy twice if the peer has died: the TCP
/// transport when it discards the connection, and again when the failed write returns
/// (uct_tcp_ep_sendv() in src/uct/tcp/tcp_ep.c). A build with assertions, such as Debian's 1.13.1,
/// then aborts the process.
bool completes_failed_sends_twice(unsigned minor) {
  return minor < 14;
}

/// Of UCX 1.x.
unsigned minor_version(const UcxApi& api) {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  api.get_version(&major, &minor, &release);
  return major > 1 ? ~0U : minor;
}

}  // namespace

bool has_tcp(const Transports& transports) {
  std::string_view list = transports.list;
  if (const char* const text = std::getenv("UCX_TLS"); list.empty() && text != nullptr) list = text;
  const bool named = list.find("tcp") != list.npos;
  if (list.starts_with('^')) return !named;
  return named || list.empty() || list.find("all") != list.npos;
}

bool has_infiniband() {
  std::error_code none;  // No such directory: no such device.
  return std::filesystem::directory_iterator("/sys/class/infiniband", none) !=
         std::filesystem::directory_iterator();
}

Config::Config(const UcxApi& api) : api_(api) {
  check(api, api.config_read(nullptr, nullptr, &config_), "ucp_config_read");
}

Config::Config(const UcxApi& api, const Transports& transports) : Config(api) {
  if (const auto& list = transports.list; !list.empty())
    check(api, api.config_modify(config_, "TLS", list.c_str()),
          fmt::format("setting UCX_TLS to {}", list));
  if (!is_set("KEEPALIVE_INTERVAL"))
    check(api, api.config_modify(config_, "KEEPALIVE_INTERVAL", "1s"),
          "setting UCX_KEEPALIVE_INTERVAL");
  if (!has_tcp(transports)) return;
  if (transports.one_host) use_loopback();
  // UCX makes the connections without a wait, and sends nothing before it makes progress (Gate).
  set_tcp("CONN_NB", "y");
  if (transports.dead_after.count() > 0) {
    const auto probe = std::chrono::ceil<std::chrono::seconds>(transports.dead_after / 10).count();
    if (!is_set("TCP_KEEPIDLE")) set_tcp("KEEPIDLE", fmt::format("{}s", 3 * probe).c_str());
    if (!is_set("TCP_KEEPINTVL")) set_tcp("KEEPINTVL", fmt::format("{}s", probe).c_str());
    if (!is_set("TCP_KEEPCNT")) set_tcp("KEEPCNT", "7");
  }
  // UCX sends large messages over TCP in segments of this size if it detects failures; its default
  // of 64 KiB costs a fifth of the rate. A segment holds a message of 512 KiB and its headers.
  constexpr const char* segment = "528k";
  if (!is_set("TCP_RX_SEG_SIZE")) set_tcp("RX_SEG_SIZE", segment);
  if (!completes_failed_sends_twice(minor_version(api)) || is_set("ZCOPY_THRESH")) return;
  check(api, api.config_modify(config_, "ZCOPY_THRESH", "inf"), "setting UCX_ZCOPY_THRESH");
  // The copies are as large as the segments of the receiver; UCX's default of 8 KiB would cost half
  // of the rate. UCX refuses a larger size than that of the receiver's segments.
  if (!is_set("TCP_TX_SEG_SIZE") && !is_set("TCP_RX_SEG_SIZE")) set_tcp("TX_SEG_SIZE", segment);
}

/// Within a host UCX then listens where other hosts do not reach it. With InfiniBand or RoCE it may
/// use the adapter instead.
void Config::use_loopback() {
  if (is_set("NET_DEVICES") || has_infiniband()) return;
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(first, ::freeifaddrs);
  for (const auto* one = first; one != nullptr; one = one->ifa_next)
    if ((one->ifa_flags & IFF_UP) != 0 && (one->ifa_flags & IFF_LOOPBACK) != 0 &&
        one->ifa_addr != nullptr && one->ifa_addr->sa_family == AF_INET)
      return check(api_, api_.config_modify(config_, "NET_DEVICES", one->ifa_name),
                   "setting UCX_NET_DEVICES");
}

/// From 1.17 on UCX knows these options by the name with TCP_, before by the name without, and
/// before 1.13 not at all. 1.13 and newer take every name, and log those that they do not know.
void Config::set_tcp(const char* option, const char* value) {
  const bool long_name = minor_version(api_) >= 17;
  (void)api_.config_modify(config_, fmt::format("{}{}", long_name ? "TCP_" : "", option).c_str(),
                           value);
}

}  // namespace tutti::backend::ucx
