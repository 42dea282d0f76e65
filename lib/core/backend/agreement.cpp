#include "backend/agreement.hpp"

#include <algorithm>
#include <charconv>
#include <string>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "backend/rendezvous.hpp"
#include "store/checks.hpp"
#include "values/bytes.hpp"
#include "values/error_record.hpp"

// The keys:
//   failed                the cause; "collecting <rank>" while that rank collects status
// and those that begin with "agreement/":
//   status/<rank>         the call that the rank is in, published while status is collected
//   calls/<group>         the last calls of the rank that got furthest, for a comparison
//   asked                 the number of times that a rank asked all ranks to compare their calls
//   ask/<rank>            messages whose other side that rank may have made differently
//   left/<rank>           the number of collectives that the rank had ended when it left
//   departures            the number of ranks that have left
//   beat/<rank>           of Heartbeats
//   refus..., abandoned/  of Refusals

namespace tutti::internal {
namespace {

using namespace std::chrono_literals;

/// The time for which other ranks wait for the collecting rank after its patience has ended.
constexpr auto settle_time = 1s;
/// The least time for collecting, even if this rank reached the store late.
constexpr auto least_patience = 10ms;
constexpr auto pause_of_polls = 2ms;

std::string key(std::string_view what, int rank) {
  return fmt::format("{}/{}", what, rank);
}

bool is_claim(std::string_view held) {
  return held.starts_with(internal::collecting);
}

Bytes encode(const Status& status) {
  Writer out;
  out.text(status.call);
  write(out, status.record);
  out.text(status.group);
  return out.take();
}

Status decode_status(const Bytes& bytes) {
  Reader in(bytes, Errc::mismatch, "a peer's status");
  Status status;
  status.call = in.text();
  status.record = read_record(in);
  status.group = in.text();
  in.end();
  return status;
}

Bytes encode(std::span<const MessageSide> sides) {
  Writer out;
  out.u64(sides.size());
  for (const auto& side : sides)
    out.i32(side.rank).u64(side.pair).u64(side.fingerprint).text(side.text);
  return out.take();
}

std::vector<MessageSide> decode_message_sides(const Bytes& bytes) {
  std::vector<MessageSide> sides;
  if (bytes.empty()) return sides;
  Reader in(bytes, Errc::mismatch, "the messages of peers");
  for (auto count = in.u64(); count > 0; --count) {
    auto& side = sides.emplace_back();
    side.rank = in.i32();
    side.pair = in.u64();
    side.fingerprint = in.u64();
    side.text = in.text();
  }
  in.end();
  return sides;
}

}  // namespace

Agreement::Agreement(const std::shared_ptr<Store>& store, int rank, int size)
    : failures_(store),
      store_(make_prefix_store(store, "agreement/")),
      rank_(rank),
      size_(size),
      refusals_(store_, rank, [this] { return answers(); }) {}

std::string Agreement::claim() const {
  return fmt::format("{}{}", internal::collecting, rank_);
}

/// The value of a key. Notes whether the store answers at all.
std::optional<Bytes> Agreement::ask(Store& store, std::string_view what) const {
  bool answers = true;
  auto found = peek(store, what, answers);
  silent_.store(!answers, std::memory_order_relaxed);
  return found;
}

bool Agreement::announce(const Failure& failure) noexcept {
  try {
    if (is_silent() || !answers()) return true;
    const auto mine = failure.ask.empty() ? encode_error(failure.cause) : claim();
    if (to_text(failures_->compare_set(failed, {}, to_bytes(mine))) == mine) return true;
  } catch (...) {
    return true;
  }
  if (!failure.status.call.empty()) publish_status(failure.status);
  return false;
}

Error Agreement::settle(const Failure& failure, bool first) noexcept {
  if (is_silent()) return failure.cause;
  try {
    if (first && failure.ask.empty()) return failure.cause;
    if (first) {
      const auto named = to_bytes(encode_error(collect_status(failure)));
      return decode_error(to_text(failures_->compare_set(failed, to_bytes(claim()), named)));
    }
    const auto end = Deadline::after(failure.patience + settle_time);
    Bytes held = failures_->get(failed, end);
    while (is_claim(to_text(held)) && !end.expired()) {
      std::this_thread::sleep_for(pause_of_polls);
      held = failures_->get(failed, end);
    }
    // The collecting rank did not finish in time.
    if (is_claim(to_text(held)))
      held = failures_->compare_set(failed, held, to_bytes(encode_error(failure.cause)));
    return decode_error(to_text(held));
  } catch (...) {
    return failure.cause;
  }
}

Error Agreement::report(const Failure& failure) noexcept {
  return settle(failure, announce(failure));
}

Error Agreement::collect_status(const Failure& failure) const {
  const auto end = Deadline::at(std::max(failure.since + failure.patience,
                                         std::chrono::steady_clock::now() + least_patience));
  const auto count = failure.ask.size();
  std::vector<Status> statuses(count);
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < count; ++i) {
    if (failure.ask[i] == rank_)
      statuses[i] = failure.status;
    else
      missing.push_back(i);
  }
  for (;;) {
    std::erase_if(missing, [&](std::size_t i) {
      if (const auto bytes = peek(*store_, key("status", failure.ask[i])))
        statuses[i] = decode_status(*bytes);
      return statuses[i].call == failure.status.call;
    });
    if (missing.empty() || end.expired()) break;
    std::this_thread::sleep_for(pause_of_polls);
  }
  std::vector<Presence> ranks(count, {.entered = true});
  for (const auto i : missing) ranks[i] = {.left = left(failure.ask[i]), .last = statuses[i].call};
  if (missing.empty()) {
    std::vector<Record> records;
    for (const auto& status : statuses) records.push_back(status.record);
    if (const auto differs = compare(failure.names, {}, {}, records))
      return with_message(failure.cause, Errc::mismatch, differs->where().rank,
                          fmt::format("{}; {}", differs->message(), failure.cause.message()));
  }
  // While a rank is missing, ranks in later calls have left this one or wait for that rank.
  const auto is_silent = [](const Presence& rank) { return !rank.entered && rank.last.empty(); };
  if (std::ranges::any_of(ranks, is_silent))
    for (const auto i : missing)
      ranks[i].entered = statuses[i].group == failure.status.group &&
                         statuses[i].record.seq > failure.status.record.seq;
  const Error named =
      name_missing(failure.cause, ranks, failure.status.record.view(), failure.names);
  const auto in_another_call = [](const Presence& rank) {
    return !rank.entered && !rank.left && !rank.last.empty();
  };
  if (std::ranges::none_of(ranks, in_another_call)) return named;
  return with_message(named, named.code(), named.where().rank,
                      named.message() +
                          "; ranks may have made different calls, which "
                          "TUTTI_CHECK=1 compares before data moves",
                      named.where().missing);
}

std::optional<Error> Agreement::cause(const Status& mine) noexcept {
  try {
    const auto held = ask(*failures_, failed);
    if (!held) return std::nullopt;
    if (!is_claim(to_text(*held))) return decode_error(to_text(*held));
    if (!mine.call.empty()) publish_status(mine);  // Another thread may have published its own.
  } catch (...) {
  }
  return std::nullopt;
}

bool Agreement::collecting() const {
  const auto held = peek(*failures_, failed);
  return held && is_claim(to_text(*held));
}

void Agreement::publish_status(const Status& mine) noexcept {
  if (is_silent()) return;
  try {
    store_->set(key("status", rank_), encode(mine));
  } catch (...) {  // Status is needed only for error texts.
  }
}

std::optional<CallDifference> Agreement::compare_calls(std::string_view group,
                                                       const GroupNames& names,
                                                       const PastCalls& mine, bool publish) {
  if (mine.empty()) return std::nullopt;
  const auto place = fmt::format("calls/{:x}", call_id(group, 0));
  const auto own = encode(mine);
  Bytes held;
  if (publish) {
    held = store_->compare_set(place, {}, own);
  } else if (auto found = peek(*store_, place)) {
    held = std::move(*found);
  }
  if (held.empty() || held == own) return std::nullopt;
  const auto theirs = decode_past_calls(held);
  if (theirs.empty()) return std::nullopt;
  if (theirs.rank != mine.rank)
    if (auto found = difference(names, mine, theirs)) return found;
  if (publish && mine.last() > theirs.last()) (void)store_->compare_set(place, held, own);
  return std::nullopt;
}

void Agreement::ask_all() {
  (void)store_->add("asked", 1);
}

void Agreement::ask(int peer, const MessageSide& mine) {
  constexpr std::size_t most = 64;
  const auto place = key("ask", peer);
  for (auto held = peek(*store_, place).value_or(Bytes());;) {
    auto sides = decode_message_sides(held);
    std::erase_if(sides, [&](const auto& side) { return side.rank == mine.rank; });
    if (sides.size() >= most) return;
    sides.push_back(mine);
    const auto wanted = encode(sides);
    auto found = store_->compare_set(place, held, wanted);
    if (found == wanted) return;
    held = std::move(found);  // Another rank has asked meanwhile.
  }
}

bool Agreement::is_asked() {
  const auto count = peek(*store_, "asked");
  return count && std::exchange(asked_, to_text(*count)) != to_text(*count);
}

std::vector<MessageSide> Agreement::questions() {
  const auto place = key("ask", rank_);
  const auto held = peek(*store_, place);
  if (!held) return {};
  auto sides = decode_message_sides(*held);
  // If a rank has asked meanwhile, all are read again.
  if (!sides.empty()) (void)store_->compare_set(place, *held, encode(std::span<MessageSide>()));
  return sides;
}

bool Agreement::answers() const noexcept {
  try {
    return ask(*failures_, failed) || !is_silent();
  } catch (...) {  // The store has ended, so a write throws at once.
    return true;
  }
}

void Agreement::leave(std::uint64_t ended) noexcept {
  try {
    if (is_silent() && !answers()) return;
    store_->set(key("left", rank_), std::to_string(ended));
    (void)store_->add("departures", 1);
  } catch (...) {  // Without the store, peers that need this rank wait until their deadline.
  }
}

bool Agreement::left(int rank) const {
  return peek(*store_, key("left", rank)).has_value();
}

const std::map<int, std::uint64_t>& Agreement::departed() noexcept {
  try {
    const auto count = peek(*store_, "departures");
    if (!count || to_text(*count) == std::to_string(departed_.size())) return departed_;
    for (int r = 0; r < size_; ++r) {
      const auto bytes = peek(*store_, key("left", r));
      if (!bytes) continue;
      const auto text = to_text(*bytes);
      std::uint64_t ended = 0;
      std::from_chars(text.data(), text.data() + text.size(), ended);
      departed_.emplace(r, ended);
    }
  } catch (...) {  // Without the store no further departures are found.
  }
  return departed_;
}

}  // namespace tutti::internal
