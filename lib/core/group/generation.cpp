#include "group/generation.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "backend/rendezvous.hpp"
#include "group/group_keys.hpp"
#include "store/checks.hpp"
#include "values/bytes.hpp"

namespace tutti::internal {
namespace {

constexpr std::string_view groups_of_all = "groups";

std::string key_of_failed(int rank) {
  return fmt::format("failed/{}", rank);
}

std::string prefix_of_group(std::int64_t number) {
  return fmt::format("{}/", number);
}

int to_number(const std::string& text) {
  return text.empty() ? 0 : std::stoi(text);
}

}  // namespace

Generation::Generation(GroupOptions& o, Failure failure)
    : store_(o.store), rank_(o.rank), own_(fmt::format("groups/{}", o.rank)), failure_(failure) {
  if (o.size == 1) return;
  held_ = to_text(store_->try_get(groups_of_all).value_or(Bytes()));
  const auto own = to_text(store_->try_get(own_).value_or(Bytes()));
  number_ = std::max(to_number(held_), to_number(own));
  keys_ = std::make_shared<GroupKeys>(store_, prefix_of_group(number_), o.rank, o.size);
  o.store = keys_;
  size_ = o.size;
}

void Generation::end(std::optional<Errc> error) noexcept {
  if (size_ == 1) return;
  if (!error) keys_->set_made();
  const bool of_all = failure_ == Failure::all || !error || *error == Errc::timeout ||
                      *error == Errc::peer_lost || *error == Errc::aborted;
  try {
    if (error && !peek(*keys_, made_with)) return;  // A write would wait for the store's timeout.
    const auto next = std::to_string(number_ + 1);
    if (of_all)
      for (auto held = held_; to_number(held) <= number_;)
        held = to_text(store_->compare_set(groups_of_all, to_bytes(held), to_bytes(next)));
    else
      store_->set(own_, next);
    if (failure_ == Failure::all) error ? keep_failed() : erase_failed();
  } catch (...) {  // The store failed too.
  }
}

std::vector<std::int64_t> Generation::failed() const {
  const auto bytes = store_->try_get(key_of_failed(rank_));
  if (!bytes) return {};
  return Reader(*bytes, Errc::backend, "a list of groups in the store").list();
}

void Generation::keep_failed() {
  auto numbers = failed();
  numbers.push_back(number_);
  keys_->set_failed();
  Writer out;
  out.list(numbers);
  store_->set(key_of_failed(rank_), out.bytes());
}

/// All ranks have come to this group, so none looks for the cause of an earlier failure any more.
void Generation::erase_failed() {
  if (number_ == 0) return;
  const auto numbers = failed();
  for (const auto number : numbers) GroupKeys::erase_listed(store_, prefix_of_group(number), rank_);
  if (!numbers.empty()) store_->erase(key_of_failed(rank_));
}

}  // namespace tutti::internal
