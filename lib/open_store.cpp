#include <map>
#include <mutex>
#include <string>

#include <tutti/store.hpp>

#include "internal/fail.hpp"

namespace [[gnu::visibility("default")]] tutti {
namespace {

/// Ranks that are threads ask for their common store by name; it goes with the last of them.
std::shared_ptr<Store> memory_store_named(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<Store>> stores;
  const std::lock_guard lock(mutex);
  std::erase_if(stores, [](const auto& entry) { return entry.second.expired(); });
  auto store = stores[name].lock();
  if (store == nullptr) stores[name] = store = make_memory_store();
  return store;
}

}  // namespace

std::shared_ptr<Store> open_store(std::string_view address, std::chrono::nanoseconds) {
  constexpr std::string_view known = "file:///directory and memory://name";
  const auto colon = address.find("://");
  if (colon == std::string_view::npos)
    internal::failf(Errc::invalid_argument, "store '{}' is no address: this version knows {}",
                    address, known);
  const auto scheme = address.substr(0, colon);
  const std::string rest(address.substr(colon + 3));
  if (scheme == "file") {
    if (!rest.starts_with('/'))
      internal::failf(Errc::invalid_argument,
                      "store '{}': the directory has to begin with '/', as in file:///directory",
                      address);
    return make_file_store(rest);
  }
  if (scheme == "memory") {
    if (rest.empty())
      internal::failf(Errc::invalid_argument, "store '{}' has no name: this version knows {}",
                      address, known);
    return memory_store_named(rest);
  }
  internal::failf(Errc::unsupported, "store '{}': this version knows {}", address, known);
}

}  // namespace tutti
