#include "group.hpp"

#include <charconv>
#include <utility>

#include <fmt/format.h>

namespace tutti::backend::hier {

namespace {

bool is_digit(char c) noexcept {
  return c >= '0' && c <= '9';
}

}  // namespace

std::string renumbered(std::string_view text, std::span<const int> ranks) {
  std::string out;
  const auto take = [&](std::size_t n) {
    out += text.substr(0, n);
    text.remove_prefix(n);
  };
  const auto take_if = [&](std::string_view word) {
    const bool found =
        text.starts_with(word) && text.size() > word.size() && is_digit(text[word.size()]);
    if (found) take(word.size());
    return found;
  };
  while (!text.empty()) {
    if (!take_if("rank ") && !take_if("ranks ")) {
      take(1);
      continue;
    }
    do {
      int number = 0;
      const auto* const end = std::from_chars(text.data(), text.data() + text.size(), number).ptr;
      if (number < static_cast<int>(ranks.size())) {
        out += std::to_string(ranks[static_cast<std::size_t>(number)]);
        text.remove_prefix(static_cast<std::size_t>(end - text.data()));
      } else {
        take(static_cast<std::size_t>(end - text.data()));
      }
    } while (take_if(" ") || take_if(", ") || take_if(" and "));
  }
  return out;
}

Error renumbered(const Error& error, const std::string& group, std::span<const int> ranks) {
  const auto whole = [&](int rank) {
    return rank >= 0 && rank < std::ssize(ranks) ? ranks[static_cast<std::size_t>(rank)] : rank;
  };
  auto where = error.where();
  where.group = group;
  where.rank = whole(where.rank);
  for (int& rank : where.missing) rank = whole(rank);
  return {error.code(), renumbered(error.message(), ranks), where};
}

void Group::on_failure(std::function<void(std::string_view)> stop,
                       std::function<void(const Error&)> ended) {
  const std::lock_guard lock(hooks_mutex_);
  stop_ = std::move(stop);
  ended_ = std::move(ended);
}

void Group::leave() noexcept {
  {
    const std::lock_guard lock(hooks_mutex_);
    stop_ = nullptr;
    ended_ = nullptr;
  }
  if (size_ > 1) agreement().leave(0);
}

void Group::stop(const Error& why) noexcept {
  const std::lock_guard lock(hooks_mutex_);
  if (stop_) stop_(why.message());
}

void Group::on_broken(const Error& cause) noexcept {
  const std::lock_guard lock(hooks_mutex_);
  if (ended_) ended_(cause);
}

}  // namespace tutti::backend::hier
