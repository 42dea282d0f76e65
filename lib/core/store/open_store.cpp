#include <charconv>
#include <map>
#include <mutex>
#include <string>

#include <tutti/store/store.hpp>
#include <tutti/store/token.hpp>

#include "values/fail.hpp"

namespace [[gnu::visibility("default")]] tutti {
namespace {

/// The store that ranks of one process share by name. The release of the last reference destroys
/// it.
std::shared_ptr<Store> memory_store_named(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<Store>> stores;
  const std::lock_guard lock(mutex);
  std::erase_if(stores, [](const auto& entry) { return entry.second.expired(); });
  auto store = stores[name].lock();
  if (store == nullptr) stores[name] = store = make_memory_store();
  return store;
}

constexpr std::string_view known = "tcp://host:port, file:///directory and memory://name";

std::shared_ptr<Store> open_tcp(std::string_view address, std::string_view host_port,
                                std::chrono::nanoseconds timeout, const StoreIdentity& identity) {
  const auto colon = host_port.rfind(':');
  auto host = host_port.substr(0, colon);
  const auto digits = colon == std::string_view::npos ? "" : host_port.substr(colon + 1);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  int port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  const bool plain = bracketed || host.find_first_of(":[]/") == std::string_view::npos;
  if (host.empty() || !plain || error != std::errc() || end != digits.data() + digits.size() ||
      port < 1 || port > 65535)
    internal::failf(Errc::invalid_argument,
                    "store '{}': expected tcp://HOST:PORT with a name or an IPv4 address, such as "
                    "tcp://host:29500, or an IPv6 address in brackets, such as tcp://[::1]:29500",
                    address);
  return make_tcp_store(std::string(host), port, timeout, identity);
}

}  // namespace

std::shared_ptr<Store> open_store(std::string_view address, std::chrono::nanoseconds timeout) {
  return open_store(address, timeout, StoreIdentity{});
}

std::shared_ptr<Store> open_store(std::string_view address, std::chrono::nanoseconds timeout,
                                  const StoreIdentity& identity) {
  const auto colon = address.find("://");
  if (colon == std::string_view::npos)
    internal::failf(Errc::invalid_argument,
                    "store '{}' is not an address; this version supports {}", address, known);
  const auto scheme = address.substr(0, colon);
  const std::string rest(address.substr(colon + 3));
  if (scheme == "tcp") return open_tcp(address, rest, timeout, identity);
  if (scheme == "file") {
    if (!rest.starts_with('/'))
      internal::failf(Errc::invalid_argument,
                      "store '{}': the directory has to begin with '/', as in file:///directory",
                      address);
    return make_file_store(rest);
  }
  if (scheme == "memory") {
    if (rest.empty())
      internal::failf(Errc::invalid_argument,
                      "store '{}' has no name after '://'; this version supports {}", address,
                      known);
    return memory_store_named(rest);
  }
  internal::failf(Errc::unsupported, "store '{}' is of an unknown kind; this version supports {}",
                  address, known);
}

}  // namespace tutti
