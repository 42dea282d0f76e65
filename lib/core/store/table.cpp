#include "store/table.hpp"

#include <algorithm>
#include <utility>

#include "store/checks.hpp"
#include "values/fail.hpp"

namespace tutti::internal {
namespace {

/// A value whose bytes are counted while it has references.
struct Counted {
  Counted(std::span<const std::byte> value, std::shared_ptr<std::size_t> counter)
      : bytes(value.begin(), value.end()), used(std::move(counter)) {
    *used += bytes.size();
  }
  ~Counted() { *used -= bytes.size(); }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  const Bytes bytes;
  const std::shared_ptr<std::size_t> used;
};

}  // namespace

void StoreTable::require(std::string_view key, std::size_t bytes, std::size_t freed) const {
  const auto used = *used_ - freed;
  if (used > limits_.bytes || bytes > limits_.bytes - used)
    failf(Errc::resource_exhausted, "store: '{}' needs {} more bytes, but {} of {} are in use", key,
          bytes, used, limits_.bytes);
}

void StoreTable::take(std::string_view key, std::size_t bytes) {
  require(key, bytes, 0);
  *used_ += bytes;
}

void StoreTable::put(Map::iterator position, std::string_view key,
                     std::span<const std::byte> value) {
  const bool is_new = position == values_.end();
  if (is_new && values_.size() >= limits_.keys)
    failf(Errc::resource_exhausted,
          "store: no room for '{}': there are {} keys, at most {} are allowed", key, values_.size(),
          limits_.keys);
  // A replaced value frees its bytes, unless it has other references.
  const auto freed = !is_new && position->second.use_count() == 1 ? position->second->size() : 0;
  require(key, value.size() + (is_new ? key.size() : 0), freed);
  const auto counted = std::make_shared<const Counted>(value, used_);
  Value fresh(counted, &counted->bytes);
  if (is_new) {
    values_.emplace(key, std::move(fresh));
    *used_ += key.size();
  } else {
    position->second = std::move(fresh);
  }
}

void StoreTable::set(std::string_view key, std::span<const std::byte> value) {
  check_key(key);
  check_value(key, value.size());
  put(values_.find(key), key, value);
}

StoreTable::Value StoreTable::find(std::string_view key) const {
  check_key(key);
  const auto it = values_.find(key);
  return it == values_.end() ? nullptr : it->second;
}

std::int64_t StoreTable::add(std::string_view key, std::int64_t delta) {
  check_key(key);
  const auto position = values_.find(key);
  std::int64_t result = 0;
  const auto now =
      sum(key, position == values_.end() ? std::nullopt : std::optional(*position->second), delta,
          result);
  put(position, key, now);
  return result;
}

StoreTable::Value StoreTable::compare_set(std::string_view key, std::span<const std::byte> expected,
                                          std::span<const std::byte> desired) {
  check_key(key);
  check_value(key, desired.size());
  const auto position = values_.find(key);
  const bool equal = position == values_.end() ? expected.empty()
                                               : std::ranges::equal(*position->second, expected);
  if (equal) put(position, key, desired);
  return find(key);
}

bool StoreTable::erase(std::string_view key) {
  check_key(key);
  const auto position = values_.find(key);
  if (position == values_.end()) return false;
  *used_ -= position->first.size();
  values_.erase(position);
  return true;
}

}  // namespace tutti::internal
