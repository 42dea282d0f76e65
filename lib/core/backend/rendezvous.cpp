#include "backend/rendezvous.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "backend/record.hpp"
#include "backend/value_exchange.hpp"
#include "store/checks.hpp"
#include "values/environment_switch.hpp"
#include "values/error_record.hpp"
#include "values/fail.hpp"

// The keys, beside those of ValueExchange:
//   failed   the error of the rank that gave up first; from then on of the group (Agreement)

namespace tutti::internal {
namespace {

using namespace std::chrono_literals;

/// A rank that waits asks at most this often, and at least this often, whether a rank has given up.
constexpr std::chrono::nanoseconds most_often = 20ms;
constexpr std::chrono::nanoseconds least_often = 200ms;

}  // namespace

Rendezvous::Rendezvous(const BackendInit& init, std::function<void()> watch)
    : store_(init.store),
      failures_(init.whole == nullptr ? init.store : init.whole->store),
      names_(init.name, init.whole),
      rank_(init.rank),
      size_(init.size),
      limit_(Deadline::after(init.timeout)),
      watch_(std::move(watch)) {}

void Rendezvous::publish(std::string_view key, std::span<const std::byte> value) {
  store_->set(key, value);
  published_ = key;
}

Bytes Rendezvous::publish_first(std::string_view key, std::span<const std::byte> value) {
  auto first = store_->compare_set(key, {}, value);
  published_ = key;
  return first;
}

Bytes Rendezvous::await(std::string_view key) {
  return await_key(*store_, key, limit_, least_often, [&] { look(); });
}

std::vector<Bytes> Rendezvous::exchange(std::string_view what, std::span<const std::byte> mine,
                                        const std::function<void()>& look_too) {
  if (size_ == 1) return {Bytes(mine.begin(), mine.end())};
  ValueExchange exchange(*store_, std::string(what), rank_, size_);
  if (auto all = exchange.publish(mine)) return *std::move(all);
  published_ = exchange.own_key();
  try {
    return exchange.values(await_key(*store_, exchange.all_key(), limit_, least_often, [&] {
      look();
      if (look_too) look_too();
    }));
  } catch (const Error& error) {
    if (error.code() != Errc::timeout || !limit_.expired() || !answers()) throw;
    look();
    const auto missing = exchange.missing();
    // The rank that came last may have died before it wrote the values of all.
    if (missing.empty())
      if (auto all = exchange.read_all()) return *std::move(all);
    throw late(missing);
  }
}

std::vector<std::string> Rendezvous::exchange(std::string_view what, std::string_view mine) {
  std::vector<std::string> texts;
  for (const auto& value : exchange(what, std::as_bytes(std::span(mine))))
    texts.push_back(to_text(value));
  return texts;
}

Error Rendezvous::late(const std::vector<int>& ranks) const {
  std::vector<int> missing;
  for (const int r : ranks) missing.push_back(names_(r));
  return {Errc::timeout,
          fmt::format("group '{}': {} of {} ranks joined before the deadline; missing: {}",
                      names_.group(), size_ - std::ssize(missing), size_, list_ranks(missing)),
          {.rank = missing.empty() ? -1 : missing.front(), .missing = missing}};
}

void Rendezvous::check() {
  const auto now = Deadline::Clock::now();
  if (now < next_look_) return;
  next_look_ = now + most_often;
  look();
}

void Rendezvous::look() {
  if (size_ == 1) return;
  const auto held = peek(*failures_, failed);
  if (held && !to_text(*held).starts_with(collecting)) throw Error(decode_error(to_text(*held)));
  if (watch_) watch_();
}

/// A write would wait for the timeout of a store that does not answer, a read does not.
bool Rendezvous::answers() const {
  return published_.empty() || peek(*store_, published_).has_value();
}

Error Rendezvous::give_up(const Error& why) noexcept {
  try {
    if (size_ == 1) return why;
    auto where = why.where();
    if (where.rank < 0 && why.code() != Errc::timeout) where.rank = names_(rank_);
    const Error own(why.code(), why.message(), where);
    if (!answers()) return own;
    const Error told(why.code(),
                     fmt::format("rank {} could not make group '{}': {}", names_(rank_),
                                 names_.group(), why.message()),
                     {.rank = where.rank, .missing = where.missing});
    const auto mine = to_bytes(encode_error(told));
    const auto held = failures_->compare_set(failed, {}, mine);
    // A peer may have noticed the lack of memory before, by its consequences.
    const bool is_first = held == mine || why.code() == Errc::resource_exhausted;
    return is_first ? own : decode_error(to_text(held));
  } catch (...) {  // Without the store the others wait until their deadline.
    return why;
  }
}

void refuse_encryption(std::string_view backend) {
  if (environment_switch("TUTTI_TLS", false))
    failf(
        Errc::unsupported,
        "TUTTI_TLS is 1, and the backend {} does not encrypt; use tcp, or hier:shm+tcp for several "
        "ranks on each host",
        backend);
}

std::vector<int> number_hosts(std::span<const std::string> hosts) {
  std::vector<std::string_view> distinct;
  std::vector<int> numbers;
  for (const auto& host : hosts) {
    const auto found = std::ranges::find(distinct, host) - distinct.begin();
    if (found == std::ssize(distinct)) distinct.push_back(host);
    numbers.push_back(static_cast<int>(found));
  }
  return numbers;
}

}  // namespace tutti::internal
