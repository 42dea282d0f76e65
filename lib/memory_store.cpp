#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>

#include <tutti/store.hpp>

#include "internal/store_checks.hpp"

namespace [[gnu::visibility("default")]] tutti {
namespace {

class MemoryStore final : public Store {
 public:
  using Store::set;
  void set(std::string_view key, std::span<const std::byte> value) override {
    internal::check_key(key);
    internal::check_value(key, value.size());
    const std::lock_guard lock(mutex_);
    put(key, Bytes(value.begin(), value.end()));
  }

  std::optional<Bytes> try_get(std::string_view key) override {
    internal::check_key(key);
    const std::lock_guard lock(mutex_);
    return find(key);
  }

  Bytes get(std::string_view key, Deadline deadline) override {
    internal::check_key(key);
    std::unique_lock lock(mutex_);
    auto value = find(key);
    const auto there = [&] { return (value = find(key)).has_value(); };
    if (!value) {
      if (deadline.time() == Deadline::Clock::time_point::max())
        changed_.wait(lock, there);
      else if (!changed_.wait_until(lock, deadline.time(), there))
        internal::missing(key);
    }
    return *std::move(value);
  }

  std::int64_t add(std::string_view key, std::int64_t delta) override {
    internal::check_key(key);
    const std::lock_guard lock(mutex_);
    std::int64_t result = 0;
    put(key, internal::sum(key, find(key), delta, result));
    return result;
  }

  Bytes compare_set(std::string_view key, std::span<const std::byte> expected,
                    std::span<const std::byte> desired) override {
    internal::check_key(key);
    internal::check_value(key, desired.size());
    const std::lock_guard lock(mutex_);
    auto now = find(key);
    const bool equal = now ? std::ranges::equal(*now, expected) : expected.empty();
    if (!equal) return now.value_or(Bytes{});
    put(key, Bytes(desired.begin(), desired.end()));
    return {desired.begin(), desired.end()};
  }

  bool erase(std::string_view key) override {
    internal::check_key(key);
    const std::lock_guard lock(mutex_);
    const auto it = values_.find(key);
    if (it == values_.end()) return false;
    values_.erase(it);
    return true;
  }

 private:
  std::optional<Bytes> find(std::string_view key) const {
    const auto it = values_.find(key);
    return it == values_.end() ? std::nullopt : std::optional(it->second);
  }
  void put(std::string_view key, Bytes value) {
    values_.insert_or_assign(std::string(key), std::move(value));
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Bytes, std::less<>> values_;
};

}  // namespace

std::shared_ptr<Store> make_memory_store() {
  return std::make_shared<MemoryStore>();
}

}  // namespace tutti
