#include "fate.hpp"

#include <charconv>
#include <chrono>
#include <thread>
#include <utility>

#include <fmt/format.h>

namespace tutti::backend::hier {

using namespace std::chrono_literals;

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

Fate::Fate(const std::shared_ptr<Store>& store, std::string group, int rank, int size)
    : group_(std::move(group)), rank_(rank), size_(size), agreement_(store, rank, size) {}

void Fate::on_failure(std::function<void(std::string_view)> stop,
                      std::function<void(const Error&)> ended) {
  const std::lock_guard lock(hooks_mutex_);
  stop_ = std::move(stop);
  ended_ = std::move(ended);
}

void Fate::leave() noexcept {
  {
    const std::lock_guard lock(hooks_mutex_);
    stop_ = nullptr;
    ended_ = nullptr;
  }
  if (size_ > 1) agreement_.leave(0);
}

Error Fate::fail(const internal::Failure& failure) noexcept {
  {
    std::unique_lock lock(mutex_);
    if (state_ != State::up) {
      lock.unlock();
      if (!failure.status.call.empty()) agreement_.publish_status(failure.status);
      lock.lock();
      settled_.wait(lock, [&] { return state_ == State::failed; });
      return *cause_;
    }
    state_ = State::failing;
  }
  // Before the parts stop, so that a peer whose part stops finds the cause in the store.
  const bool first = agreement_.announce(failure);
  {
    const std::lock_guard lock(hooks_mutex_);
    if (stop_) stop_(failure.cause.message());
  }
  const Error cause = agreement_.settle(failure, first);
  {
    const std::lock_guard lock(mutex_);
    cause_ = cause;
    state_ = State::failed;
  }
  settled_.notify_all();
  const std::lock_guard lock(hooks_mutex_);
  if (ended_) ended_(cause);
  return cause;
}

Error Fate::await_failure(const internal::Failure& failure) noexcept {
  const auto limit = Deadline::after(2s);
  while (!cause() && !limit.expired()) {
    if (const auto found = agreement_.cause(failure.status)) return fail({.cause = *found});
    std::this_thread::sleep_for(2ms);
  }
  return fail(failure);
}

std::optional<Error> Fate::cause() const {
  const std::lock_guard lock(mutex_);
  return cause_;
}

}  // namespace tutti::backend::hier
