#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
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
    return base_->add(key, delta);
  }
  Bytes compare_set(std::string_view key, std::span<const std::byte> expected,
                    std::span<const std::byte> desired) override {
    seen(key, true);
    return base_->compare_set(key, expected, desired);
  }
  bool erase(std::string_view key) override { return base_->erase(key); }

 protected:
  /// Called before all calls but erase().
  virtual void seen(std::string_view /*key*/, bool /*written*/) {}

 private:
  std::shared_ptr<Store> base_;
};

}  // namespace tutti::test
