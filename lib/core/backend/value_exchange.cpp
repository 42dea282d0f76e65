#include "backend/value_exchange.hpp"

#include <cstdint>
#include <utility>

#include <fmt/format.h>

#include "backend/peek.hpp"
#include "values/bytes.hpp"

// The keys, behind `what`:
//   /<rank>   the value of a rank
//   /count    the number of ranks that have published
//   /<W>      the values of all ranks, or a refusal. The key ends in a number, as that of a rank,
//             so GroupKeys removes it even if the rank that wrote it has died

namespace tutti::internal {
namespace {

/// The first byte of the value of all_key().
enum class ExchangeResult : std::uint8_t {
  values,    ///< The values of all ranks follow.
  too_long,  ///< They are too long for one value of the store: each rank reads all keys.
  refused    ///< The number of a rank follows, and its text.
};

}  // namespace

ValueExchange::ValueExchange(Store& store, std::string what, int rank, int size)
    : store_(store), what_(std::move(what)), rank_(rank), size_(size) {}

std::string ValueExchange::key(int number) const {
  return fmt::format("{}/{}", what_, number);
}

std::string ValueExchange::count_key() const {
  return what_ + "/count";
}

std::optional<std::vector<Bytes>> ValueExchange::publish(std::span<const std::byte> mine) {
  store_.set(own_key(), mine);
  // A rank counts twice if its store has timed out after it did the first request.
  if (store_.add(count_key(), 1) < size_) return std::nullopt;
  auto all = read_published();
  if (!all) return std::nullopt;
  Writer out;
  out.u8(static_cast<std::uint8_t>(ExchangeResult::values));
  for (const auto& value : *all) out.block(value);
  if (out.bytes().size() > Store::max_value_bytes) {
    out = {};
    out.u8(static_cast<std::uint8_t>(ExchangeResult::too_long));
  }
  store_.set(all_key(), out.bytes());
  return all;
}

void ValueExchange::refuse(std::string_view text) {
  Writer out;
  out.u8(static_cast<std::uint8_t>(ExchangeResult::refused)).i32(rank_).text(text);
  (void)store_.compare_set(all_key(), {}, out.bytes());
}

bool ValueExchange::withdraw() {
  if (store_.add(count_key(), -1) + 1 < size_) return true;
  (void)store_.add(count_key(), 1);
  return false;
}

std::vector<Bytes> ValueExchange::values(const Bytes& all) const {
  Reader in(all, Errc::backend, "the values of all ranks");
  const auto outcome = static_cast<ExchangeResult>(in.u8());
  if (outcome == ExchangeResult::refused) {
    const int rank = in.i32();
    throw Error(Errc::mismatch, fmt::format("rank {} {}", rank, in.text()), {.rank = rank});
  }
  std::vector<Bytes> values;
  if (outcome == ExchangeResult::too_long) {
    if (auto read = read_published()) return *std::move(read);
    throw Error(Errc::backend, "a value that all ranks have published is missing in the store");
  }
  for (int r = 0; r < size_; ++r) {
    const auto value = in.block();
    values.emplace_back(value.begin(), value.end());
  }
  in.end();
  return values;
}

/// Waits for a store that is slow to answer, up to its own timeout: no other rank would notice that
/// this one has taken a value for missing. Empty if ranks are missing.
std::optional<std::vector<Bytes>> ValueExchange::read_published() const {
  std::vector<Bytes> values;
  for (int r = 0; r < size_; ++r) {
    auto value = store_.try_get(key(r));
    if (!value) return std::nullopt;
    values.push_back(*std::move(value));
  }
  return values;
}

std::optional<std::vector<Bytes>> ValueExchange::read_all() const {
  std::vector<Bytes> values;
  for (int r = 0; r < size_; ++r) {
    auto value = peek(store_, key(r));
    if (!value) return std::nullopt;
    values.push_back(*std::move(value));
  }
  return values;
}

std::vector<int> ValueExchange::missing() const {
  std::vector<int> absent;
  for (int r = 0; r < size_; ++r)
    if (!peek(store_, key(r))) absent.push_back(r);
  return absent;
}

}  // namespace tutti::internal
