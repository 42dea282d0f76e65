#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <tutti/store/store.hpp>

namespace tutti::test {

/// A store over another one, for tests that look at its use, delay it or make it fail.
class StoreOver : public Store {
 public:
  explicit StoreOver(std::shared_ptr<Store> base) : base_(std::move(base)) {}
  using Store::set;
  void set(std::string_view key, std::span<const std::byte> value) override {
    seen(key, true);
    base_->set(key, value);
    changed(key);
  }
  std::optional<Bytes> try_get(std::string_view key) override {
    seen(key, false);
    return base_->try_get(key);
  }
  Bytes get(std::string_view key, Deadline deadline) override {
    seen(key, false);
    return base_->get(key, deadline);
  }
  std::int64_t add(std::string_view key, std::int64_t delta) override {
    seen(key, true);
    const auto sum = base_->add(key, delta);
    changed(key);
    return sum;
  }
  Bytes compare_set(std::string_view key, std::span<const std::byte> expected,
                    std::span<const std::byte> desired) override {
    seen(key, true);
    auto held = base_->compare_set(key, expected, desired);
    changed(key);
    return held;
  }
  bool erase(std::string_view key) override {
    const bool had = base_->erase(key);
    changed(key);
    return had;
  }

 protected:
  /// Called before all calls but erase().
  virtual void seen(std::string_view /*key*/, bool /*written*/) {}
  /// Called after all calls but those that only read.
  virtual void changed(std::string_view /*key*/) {}

  const std::shared_ptr<Store> base_;
};

/// A memory store that knows its keys.
class ListedStore : public StoreOver {
 public:
  ListedStore() : StoreOver(make_memory_store()) {}
  bool in_process() const override { return true; }
  std::set<std::string> keys() const {
    const std::lock_guard lock(mutex_);
    return keys_;
  }

 private:
  void changed(std::string_view key) override {
    const std::lock_guard lock(mutex_);
    if (base_->try_get(key))
      keys_.emplace(key);
    else
      keys_.erase(std::string(key));
  }

  mutable std::mutex mutex_;
  std::set<std::string> keys_;
};

}  // namespace tutti::test
