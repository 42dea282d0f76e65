#include "store/requests.hpp"

#include <chrono>
#include <new>

#include "store/checks.hpp"
#include "values/fail.hpp"

namespace tutti::internal {
namespace {

/// The approximate memory of a waiting get, without its key.
constexpr std::size_t wait_bytes = 256;

Reply value_or_nothing(std::uint64_t id, StoreTable::Value value) {
  const auto outcome = value == nullptr ? Outcome::nothing : Outcome::value;
  return {.id = id, .outcome = outcome, .value = std::move(value)};
}

}  // namespace

Reply error_reply(std::uint64_t id, const Error& error) {
  return {.id = id, .outcome = Outcome::error, .code = error.code(), .text = error.message()};
}

void StoreRequests::handle(Client client, const Request& request, Clock::time_point now) {
  Reply reply;
  bool waits = false;
  try {
    reply = answer(client, request, now, waits);
  } catch (const Error& error) {
    reply = error_reply(request.id, error);
  } catch (const std::bad_alloc&) {
    reply = error_reply(request.id,
                        Error(Errc::resource_exhausted, "store: the server is out of memory"));
  }
  if (waits) return;
  send_(client, reply);
  if (reply.outcome != Outcome::error) wake(request.key);
}

Reply StoreRequests::answer(Client client, const Request& request, Clock::time_point now,
                            bool& waits) {
  switch (request.verb) {
    case Verb::set:
      table_.set(request.key, request.value);
      return {.id = request.id};
    case Verb::try_get:
      return value_or_nothing(request.id, table_.find(request.key));
    case Verb::get:
      if (auto value = table_.find(request.key))
        return value_or_nothing(request.id, std::move(value));
      if (request.number <= 0) missing(request.key);
      wait(client, request, now);
      waits = true;
      return {};
    case Verb::add:
      table_.add(request.key, request.number);
      return value_or_nothing(request.id, table_.find(request.key));
    case Verb::compare_set:
      return value_or_nothing(request.id,
                              table_.compare_set(request.key, request.expected, request.value));
    case Verb::erase:
      return value_or_nothing(
          request.id, table_.erase(request.key) ? std::make_shared<const Bytes>() : nullptr);
  }
  failf(Errc::invalid_argument, "store: the verb of a request is unknown");
}

void StoreRequests::wait(Client client, const Request& request, Clock::time_point now) {
  const Waiter waiter(client, request.id);
  if (waits_.contains(waiter))
    failf(Errc::invalid_argument, "store: request {} for '{}' is already waiting", request.id,
          request.key);
  const std::chrono::nanoseconds left(request.number);
  const auto until = left >= Clock::time_point::max() - now ? Clock::time_point::max() : now + left;
  const auto wait = waits_.emplace(waiter, Wait{std::string(request.key), until}).first;
  try {
    table_.take(request.key, request.key.size() + wait_bytes);
  } catch (...) {
    waits_.erase(wait);
    throw;
  }
  try {
    by_key_[wait->second.key].insert(waiter);
    by_time_.emplace(until, waiter);
  } catch (...) {
    end_wait(wait);
    throw;
  }
}

StoreRequests::Waits::iterator StoreRequests::end_wait(Waits::iterator wait) {
  const auto& [waiter, what] = *wait;
  table_.give_back(what.key.size() + wait_bytes);
  by_time_.erase({what.until, waiter});
  const auto same_key = by_key_.find(what.key);
  if (same_key != by_key_.end()) {
    same_key->second.erase(waiter);
    if (same_key->second.empty()) by_key_.erase(same_key);
  }
  return waits_.erase(wait);
}

void StoreRequests::wake(std::string_view key) {
  const auto waiting = by_key_.find(key);
  if (waiting == by_key_.end()) return;
  const auto value = table_.find(key);
  if (value == nullptr) return;
  const auto waiters = waiting->second;
  for (const auto& waiter : waiters) {
    end_wait(waits_.find(waiter));
    send_(waiter.first, value_or_nothing(waiter.second, value));
  }
}

void StoreRequests::forget(Client client) {
  for (auto it = waits_.lower_bound({client, 0}); it != waits_.end() && it->first.first == client;)
    it = end_wait(it);
}

void StoreRequests::expire(Clock::time_point now) {
  while (!by_time_.empty() && by_time_.begin()->first <= now &&
         by_time_.begin()->first != Clock::time_point::max()) {
    const auto wait = waits_.find(by_time_.begin()->second);
    const auto [client, id] = wait->first;
    Reply reply;
    try {
      missing(wait->second.key);
    } catch (const Error& error) {
      reply = error_reply(id, error);
    }
    end_wait(wait);
    send_(client, reply);
  }
}

StoreRequests::Clock::time_point StoreRequests::next_expiry() const {
  return by_time_.empty() ? Clock::time_point::max() : by_time_.begin()->first;
}

}  // namespace tutti::internal
