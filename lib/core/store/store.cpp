#include <tutti/store/store.hpp>

#include <charconv>
#include <utility>

#include "store/checks.hpp"
#include "store/served_store.hpp"
#include "values/fail.hpp"

namespace [[gnu::visibility("default")]] tutti {

Store::~Store() = default;

void Store::set(std::string_view key, std::string_view value) {
  set(key, std::as_bytes(std::span(value)));
}

std::string Store::get_text(std::string_view key, Deadline deadline) {
  return internal::to_text(get(key, deadline));
}

}  // namespace tutti

namespace tutti::internal {

void check_key(std::string_view key) {
  if (key.empty()) fail(Errc::invalid_argument, "store: the key is empty");
  if (key.size() > Store::max_key_bytes)
    failf(Errc::invalid_argument, "store: key '{}...' has {} bytes; at most {} are allowed",
          key.substr(0, 32), key.size(), Store::max_key_bytes);
}

void check_value(std::string_view key, std::size_t bytes) {
  if (bytes > Store::max_value_bytes)
    failf(Errc::invalid_argument, "store: the value of '{}' has {} bytes; at most {} are allowed",
          key, bytes, Store::max_value_bytes);
}

std::string to_text(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Bytes to_bytes(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

Bytes sum(std::string_view key, const std::optional<Bytes>& old, std::int64_t delta,
          std::int64_t& result) {
  std::int64_t before = 0;
  if (old) {
    const auto text = to_text(*old);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), before);
    if (error != std::errc() || end != text.data() + text.size() || text.empty())
      failf(Errc::invalid_argument,
            "store: add to '{}', which holds {} bytes that are not a number", key, text.size());
  }
  if (__builtin_add_overflow(before, delta, &result))
    failf(Errc::count_overflow, "store: add to '{}': {} + {} exceeds 63 bits", key, before, delta);
  return to_bytes(std::to_string(result));
}

bool is_served_here(const Store& store) noexcept {
  const auto* served = dynamic_cast<const ServedStore*>(&store);
  return served != nullptr && served->is_served_here();
}

StoreIdentity identity_of(const Store& store) {
  const auto* served = dynamic_cast<const ServedStore*>(&store);
  return served == nullptr ? StoreIdentity{} : served->identity();
}

void missing(std::string_view key) {
  failf(Errc::timeout, "store: key '{}' did not appear before the deadline", key);
}

}  // namespace tutti::internal

namespace [[gnu::visibility("default")]] tutti {

namespace {

class PrefixStore final : public Store, public internal::ServedStore {
 public:
  PrefixStore(std::shared_ptr<Store> base, std::string prefix)
      : base_(std::move(base)), prefix_(std::move(prefix)) {}

  using Store::set;
  void set(std::string_view key, std::span<const std::byte> value) override {
    base_->set(full(key), value);
  }
  std::optional<Bytes> try_get(std::string_view key) override { return base_->try_get(full(key)); }
  Bytes get(std::string_view key, Deadline deadline) override {
    return base_->get(full(key), deadline);
  }
  std::int64_t add(std::string_view key, std::int64_t delta) override {
    return base_->add(full(key), delta);
  }
  Bytes compare_set(std::string_view key, std::span<const std::byte> expected,
                    std::span<const std::byte> desired) override {
    return base_->compare_set(full(key), expected, desired);
  }
  bool erase(std::string_view key) override { return base_->erase(full(key)); }
  std::string local_address() const override { return base_->local_address(); }
  bool in_process() const override { return base_->in_process(); }
  bool is_served_here() const noexcept override { return internal::is_served_here(*base_); }
  StoreIdentity identity() const override { return internal::identity_of(*base_); }

 private:
  std::string full(std::string_view key) const {
    internal::check_key(key);
    return prefix_ + std::string(key);
  }
  std::shared_ptr<Store> base_;
  std::string prefix_;
};

}  // namespace

std::shared_ptr<Store> make_prefix_store(std::shared_ptr<Store> base, std::string prefix) {
  if (base == nullptr) fail(Errc::invalid_argument, "make_prefix_store: the base store is null");
  return std::make_shared<PrefixStore>(std::move(base), std::move(prefix));
}

}  // namespace tutti
