#include <condition_variable>
#include <mutex>

#include <tutti/store/store.hpp>

#include "store/checks.hpp"
#include "store/table.hpp"

namespace [[gnu::visibility("default")]] tutti {
namespace {

class MemoryStore final : public Store {
 public:
  using Store::set;
  void set(std::string_view key, std::span<const std::byte> value) override {
    const std::lock_guard lock(mutex_);
    table_.set(key, value);
    changed_.notify_all();
  }

  std::optional<Bytes> try_get(std::string_view key) override {
    const std::lock_guard lock(mutex_);
    const auto value = table_.find(key);
    return value == nullptr ? std::nullopt : std::optional(*value);
  }

  Bytes get(std::string_view key, Deadline deadline) override {
    std::unique_lock lock(mutex_);
    auto value = table_.find(key);
    const auto there = [&] { return (value = table_.find(key)) != nullptr; };
    if (value == nullptr) {
      if (deadline.time() == Deadline::Clock::time_point::max())
        changed_.wait(lock, there);
      else if (!changed_.wait_until(lock, deadline.time(), there))
        internal::missing(key);
    }
    return *value;
  }

  std::int64_t add(std::string_view key, std::int64_t delta) override {
    const std::lock_guard lock(mutex_);
    const auto result = table_.add(key, delta);
    changed_.notify_all();
    return result;
  }

  Bytes compare_set(std::string_view key, std::span<const std::byte> expected,
                    std::span<const std::byte> desired) override {
    const std::lock_guard lock(mutex_);
    const auto value = table_.compare_set(key, expected, desired);
    changed_.notify_all();
    return value == nullptr ? Bytes{} : *value;
  }

  bool erase(std::string_view key) override {
    const std::lock_guard lock(mutex_);
    return table_.erase(key);
  }
  bool in_process() const override { return true; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  internal::StoreTable table_;
};

}  // namespace

std::shared_ptr<Store> make_memory_store() {
  return std::make_shared<MemoryStore>();
}

}  // namespace tutti
