#include "torch/c10d_store.hpp"

#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include <tutti/error.hpp>

namespace tutti::c10d_door {
namespace {

using namespace std::chrono_literals;
using Value = std::vector<std::uint8_t>;

constexpr auto first_pause = 200us;
constexpr auto longest_pause = 10ms;

Value to_value(std::span<const std::byte> bytes) {
  const auto* const data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  return {data, data + bytes.size()};
}

Bytes to_bytes(const Value& value) {
  const auto* const data = reinterpret_cast<const std::byte*>(value.data());
  return {data, data + value.size()};
}

class StoreOverC10d final : public Store {
 public:
  explicit StoreOverC10d(const c10::intrusive_ptr<::c10d::Store>& store) : store_(store->clone()) {}

  using Store::set;
  void set(std::string_view key, std::span<const std::byte> value) override {
    call([&] { store_->set(std::string(key), to_value(value)); });
  }
  std::optional<Bytes> try_get(std::string_view key) override {
    return call([&]() -> std::optional<Bytes> {
      const std::string name(key);
      if (!store_->check({name})) return std::nullopt;
      return to_bytes(store_->get(name));
    });
  }
  Bytes get(std::string_view key, Deadline deadline) override {
    for (std::chrono::nanoseconds pause = first_pause;; pause *= 2) {
      if (auto value = try_get(key)) return *std::move(value);
      if (deadline.expired())
        fail(Errc::timeout, "the key '" + std::string(key) + "' is not in the store");
      std::this_thread::sleep_for(
          std::min<std::chrono::nanoseconds>({pause, longest_pause, deadline.remaining()}));
      if (pause > longest_pause) pause = longest_pause;
    }
  }
  std::int64_t add(std::string_view key, std::int64_t delta) override {
    return call([&] { return store_->add(std::string(key), delta); });
  }
  Bytes compare_set(std::string_view key, std::span<const std::byte> expected,
                    std::span<const std::byte> desired) override {
    return call([&]() -> Bytes {
      const std::string name(key);
      // For a missing key c10d returns `expected`.
      if (!expected.empty() && !store_->check({name})) return {};
      return to_bytes(store_->compareSet(name, to_value(expected), to_value(desired)));
    });
  }
  bool erase(std::string_view key) override {
    return call([&] { return store_->deleteKey(std::string(key)); });
  }

 private:
  template <typename F>
  auto call(F&& use) -> decltype(use()) {
    const std::lock_guard lock(mutex_);
    try {
      return use();
    } catch (const std::exception& error) {
      fail(Errc::peer_lost, std::string("the store of c10d has failed: ") + error.what());
    }
  }

  std::mutex mutex_;
  c10::intrusive_ptr<::c10d::Store> store_;
};

}  // namespace

std::shared_ptr<Store> make_store(const c10::intrusive_ptr<::c10d::Store>& store) {
  return std::make_shared<StoreOverC10d>(store);
}

}  // namespace tutti::c10d_door
