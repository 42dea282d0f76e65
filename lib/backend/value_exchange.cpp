#include "backend/value_exchange.hpp"

#include <cstdint>
#include <utility>

#include <fmt/format.h>

#include "backend/peek.hpp"
#include "values/bytes.hpp"

// The keys, behind `what`:
//   /<rank>   the value of a rank
//   /count    the number of ranks that have published
//   /<W>      the values of all ranks, or a refusal. A number like that of a rank, so that
//   GroupKeys
//             removes it also if the rank that has written it has died

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
  if (store_.add(count_key(), 1) != size_) return std::nullopt;
  auto all = read_all();
  if (!all) return std::nullopt;  // A read of a silent store ends as if the key were missing.
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

void ValueExchange::withdraw() {
  (void)store_.add(count_key(), -1);
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
    if (auto read = read_all()) return *std::move(read);
    throw Error(Errc::timeout, "the store does not answer");
  }
  for (int r = 0; r < size_; ++r) {
    const auto value = in.block();
    values.emplace_back(value.begin(), value.end());
  }
  in.end();
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
