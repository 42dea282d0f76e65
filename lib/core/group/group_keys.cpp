#include "group/group_keys.hpp"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <new>

#include <fmt/format.h>

#include "backend/rendezvous.hpp"
#include "store/checks.hpp"
#include "values/bytes.hpp"

// The keys of this class:
//   keys/<rank>   whether the rank uses the keys still (1) or no more (0), and those it has written
//   ended         the number of ranks that use the keys no more

namespace tutti::internal {
namespace {

constexpr std::string_view what = "a list of keys in the store";

std::string key_of_list(int rank) {
  return fmt::format("keys/{}", rank);
}

/// The keys in the list of a rank; empty if it has written none.
std::vector<std::string> keys_of_list(Store& store, int rank) {
  std::vector<std::string> keys;
  const auto bytes = store.try_get(key_of_list(rank));
  if (!bytes) return keys;
  Reader in(*bytes, Errc::backend, what);
  in.u64();
  for (auto count = in.u64(); count > 0; --count) keys.emplace_back(in.text());
  return keys;
}

/// The key up to its number at the end; empty if it ends in none.
std::string_view before_number(std::string_view key) {
  const auto end = key.find_last_not_of("0123456789") + 1;
  return end > 0 && end < key.size() && key[end - 1] == '/' ? key.substr(0, end)
                                                            : std::string_view();
}

}  // namespace

GroupKeys::GroupKeys(const std::shared_ptr<Store>& base, const std::string& prefix, int rank,
                     int size)
    : rank_(rank), size_(size), process_(::getpid()) {
  const auto parent = std::dynamic_pointer_cast<GroupKeys>(base);
  parent_ = parent;
  base_ = make_prefix_store(parent == nullptr ? base : parent->base_, prefix);
}

GroupKeys::GroupKeys(const std::shared_ptr<GroupKeys>& whole, const std::string& prefix,
                     const std::vector<int>& left)
    : base_(make_prefix_store(whole, prefix)),
      rank_(-1),  // Not asked for.
      size_(static_cast<int>(left.size())),
      process_(::getpid()),
      whole_(whole),
      left_(left) {}

GroupKeys::~GroupKeys() {
  try {
    if (made_ && process_ == ::getpid()) leave();
  } catch (...) {  // Without the store the keys are gone, or stay.
  }
}

void GroupKeys::set_made() noexcept {
  if (whole_ != nullptr) return whole_->set_made();
  made_ = true;
  try {
    write_list(true);
  } catch (...) {  // If this rank dies, its keys may stay.
  }
}

void GroupKeys::set_failed() {
  write_list(true);
}

void GroupKeys::erase_listed(const std::shared_ptr<Store>& base, const std::string& prefix,
                             int rank) {
  const auto store = make_prefix_store(base, prefix);
  for (const auto& key : keys_of_list(*store, rank)) store->erase(key);
  store->erase(key_of_list(rank));
}

void GroupKeys::write_list(bool in_use) {
  Writer out;
  {
    const std::lock_guard lock(mutex_);
    out.u64(in_use ? 1 : 0);
    out.u64(keys_.size());
    for (const auto& key : keys_) out.text(key);
  }
  base_->set(key_of_list(rank_), out.bytes());
}

void GroupKeys::leave() {
  // A write would wait for the timeout of a store that does not answer, a read does not.
  if (!keys_.empty() && !peek(*base_, *keys_.begin())) return;
  write_list(false);
  const auto ended = base_->add("ended", 1);
  // A rank that was lost may have left before.
  std::erase_if(lost_, [&](int r) {
    const auto bytes = base_->try_get(key_of_list(r));
    return bytes && Reader(*bytes, Errc::backend, what).u64() == 0;
  });
  if (ended != size_ - std::ssize(lost_)) return;
  // The list of a rank that has died has only the keys from before the group was made. Ranks write
  // the same keys later, each with its number at the end, and the last one with W (ValueExchange).
  std::set<std::string, std::less<>> numbered;
  for (int r = 0; r < size_; ++r) {
    for (const auto& key : keys_of_list(*base_, r)) {
      base_->erase(key);
      if (const auto begin = before_number(key); !lost_.empty() && !begin.empty())
        numbered.emplace(begin);
    }
    base_->erase(key_of_list(r));
  }
  for (const auto& begin : numbered)
    for (int r = 0; r <= size_; ++r) base_->erase(fmt::format("{}{}", begin, r));
  base_->erase("ended");
}

void GroupKeys::lose(int rank) noexcept {
  if (whole_ != nullptr)
    return rank < size_ ? whole_->lose(left_[static_cast<std::size_t>(rank)]) : void();
  try {
    const std::lock_guard lock(mutex_);
    if (rank != rank_) lost_.insert(rank);
  } catch (const std::bad_alloc&) {  // The keys stay.
  }
}

void GroupKeys::note(std::string_view key) {
  // The receiver erases the records of a message, so the sender's list would grow for ever.
  if (whole_ != nullptr || key.starts_with("check/pair/")) return;
  const std::lock_guard lock(mutex_);
  if (!keys_.contains(key)) keys_.emplace(key);
}

void GroupKeys::set(std::string_view key, std::span<const std::byte> value) {
  note(key);
  base_->set(key, value);
}

std::int64_t GroupKeys::add(std::string_view key, std::int64_t delta) {
  note(key);
  return base_->add(key, delta);
}

Bytes GroupKeys::compare_set(std::string_view key, std::span<const std::byte> expected,
                             std::span<const std::byte> desired) {
  note(key);
  return base_->compare_set(key, expected, desired);
}

bool GroupKeys::erase(std::string_view key) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = keys_.find(key); found != keys_.end()) keys_.erase(found);
  }
  return base_->erase(key);
}

}  // namespace tutti::internal
