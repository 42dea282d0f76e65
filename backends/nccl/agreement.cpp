#include "agreement.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <string_view>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "group/record.hpp"
#include "store/checks.hpp"
#include "values/error_record.hpp"
#include "values/fail.hpp"

namespace tutti::backend::nccl {
namespace {

using namespace std::chrono_literals;
using internal::to_bytes;
using internal::to_text;

/// How long a rank waits for the verdict of the one that calls the roll.
constexpr auto verdict = 2s;
constexpr auto pause = 2ms;

/// The key holds this while the roll is called, with the rank that calls it.
constexpr std::string_view roll = "roll ";

std::string key(std::string_view what, int rank) {
  return fmt::format("{}/{}", what, rank);
}

}  // namespace

Agreement::Agreement(const std::shared_ptr<Store>& store, int rank, int size)
    : store_(make_prefix_store(store, "nccl/")), rank_(rank), size_(size) {}

void Agreement::meet(Deadline limit) const {
  store_->set(key("here", rank_), "");
  for (int r = 0; r < size_; ++r) {
    while (!store_->try_get(key("here", r))) {
      if (const auto cause = look("")) throw Error(*cause);
      if (!limit.expired()) {
        std::this_thread::sleep_for(pause);
        continue;
      }
      std::vector<int> missing;
      for (int other = r; other < size_; ++other)
        if (!store_->try_get(key("here", other))) missing.push_back(other);
      throw Error(Errc::timeout,
                  fmt::format("not all ranks came to make the group; missing: {}",
                              internal::list_ranks(missing)),
                  {.rank = missing.empty() ? r : missing.front()});
    }
  }
}

Bytes Agreement::await(std::string_view key, Deadline limit, const std::string& call) const {
  for (std::chrono::nanoseconds patience = 20ms;;
       patience = std::min<std::chrono::nanoseconds>(2 * patience, 1s)) {
    const auto turn = Deadline::after(patience);
    const bool last = limit.time() <= turn.time();
    try {
      return store_->get(key, last ? limit : turn);
    } catch (const Error& error) {
      if (last || error.code() != Errc::timeout) throw;
    }
    if (const auto cause = look(call)) throw Error(*cause);
  }
}

Error Agreement::settle(const Error& mine) const noexcept {
  try {
    const auto text = to_bytes(internal::encode_error(mine));
    auto held = store_->compare_set("failure", {}, text);
    // Whoever calls the roll finds this instead of what it had in mind.
    if (to_text(held).starts_with(roll)) held = store_->compare_set("failure", held, text);
    return internal::decode_error(to_text(held));
  } catch (...) {
    return mine;
  }
}

Error Agreement::collect_status(const Error& mine, const std::string& call,
                                std::chrono::nanoseconds patience) const noexcept {
  try {
    const auto own = fmt::format("{}{}", roll, rank_);
    auto held = to_text(store_->compare_set("failure", {}, to_bytes(own)));
    if (held == own) {
      const Error named = name_the_missing(mine, call, Deadline::after(patience));
      return internal::decode_error(to_text(
          store_->compare_set("failure", to_bytes(own), to_bytes(internal::encode_error(named)))));
    }
    publish_status(call);
    for (const auto end = Deadline::after(patience + verdict);
         held.starts_with(roll) && !end.expired();) {
      std::this_thread::sleep_for(pause);
      held = to_text(store_->try_get("failure").value_or(Bytes{}));
    }
    return held.starts_with(roll) ? settle(mine) : internal::decode_error(held);
  } catch (...) {
    return mine;
  }
}

Error Agreement::name_the_missing(const Error& mine, const std::string& call, Deadline end) const {
  std::vector<std::optional<std::string>> calls(static_cast<std::size_t>(size_));
  std::vector<int> missing;
  for (int r = 0; r < size_; ++r)
    if (r != rank_) missing.push_back(r);
  for (;;) {
    std::erase_if(missing, [&](int r) {
      auto& said = calls[static_cast<std::size_t>(r)];
      if (const auto text = store_->try_get(key("in", r))) said = to_text(*text);
      return said == call;
    });
    if (missing.empty() || end.expired()) break;
    std::this_thread::sleep_for(pause);
  }
  auto where = mine.where();
  if (missing.empty())
    return {mine.code(),
            fmt::format("{}; all ranks have queued the call, so the data or a kernel before it is "
                        "slower than the deadline allows, or a device has stopped",
                        mine.message()),
            where};
  std::vector<int> entered;
  for (int r = 0; r < size_; ++r)
    if (std::ranges::find(missing, r) == missing.end()) entered.push_back(r);
  std::string absent;
  for (const int r : missing) {
    const auto& said = calls[static_cast<std::size_t>(r)];
    absent += fmt::format("{}{}{}", absent.empty() ? "" : ", ", r,
                          said && !said->empty()            ? fmt::format(" ({})", *said)
                          : store_->try_get(key("left", r)) ? " (has left the group)"
                                                            : "");
  }
  where.rank = missing.front();
  return {mine.code(),
          fmt::format("{}; entered: {}; missing: {}", mine.message(), internal::list_ranks(entered),
                      absent),
          where};
}

std::optional<Error> Agreement::look(const std::string& call) const noexcept {
  try {
    const auto held = store_->try_get("failure");
    if (!held) return std::nullopt;
    const auto text = to_text(*held);
    if (!text.starts_with(roll)) return internal::decode_error(text);
    publish_status(call);
  } catch (...) {  // Without the store every rank speaks for itself.
  }
  return std::nullopt;
}

void Agreement::publish_status(const std::string& where) const noexcept {
  try {
    store_->set(key("in", rank_), where);
  } catch (...) {  // It is only for error texts.
  }
}

void Agreement::leave(std::uint64_t ended) const noexcept {
  try {
    store_->set(key("left", rank_), std::to_string(ended));
    (void)store_->add("departures", 1);
  } catch (...) {  // Then peers that still need this rank wait for their deadline.
  }
}

const std::map<int, std::uint64_t>& Agreement::departed() noexcept {
  try {
    const auto count = store_->try_get("departures");
    if (!count || to_text(*count) == std::to_string(departed_.size())) return departed_;
    for (int r = 0; r < size_; ++r) {
      const auto said = store_->try_get(key("left", r));
      if (!said) continue;
      const auto text = to_text(*said);
      std::uint64_t ended = 0;
      std::from_chars(text.data(), text.data() + text.size(), ended);
      departed_.emplace(r, ended);
    }
  } catch (...) {  // As for leave().
  }
  return departed_;
}

}  // namespace tutti::backend::nccl
