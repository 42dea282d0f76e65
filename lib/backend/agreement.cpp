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
#include "values/hash.hpp"

// The keys:
//   failed                the cause; "collecting <rank>" while that rank collects status
// and those that begin with "agreement/":
//   status/<rank>         the call that the rank is in, published while status is collected
//   refusals              the number of refused calls
//   refusal/<number>      one refused call
//   abandoned/<call>      the number of ranks that send nothing more for this refused call
//   refused/<call>/<i>    a bit for each rank from 32 i on: it refused the call itself
//   calls/<group>         the last calls of the rank that got furthest, for a comparison
//   asked                 the number of times that a rank asked all ranks to compare their calls
//   ask/<rank>            messages whose other side that rank may have made differently
//   left/<rank>           the number of collectives that the rank had ended when it left
//   departures            the number of ranks that have left
//   beat/<rank>           of Heartbeats

namespace tutti::internal {
namespace {

using namespace std::chrono_literals;

/// The time for which other ranks wait for the collecting rank after its patience has ended.
constexpr auto settle_time = 1s;
/// The least time for collecting, even if this rank reached the store late.
constexpr auto least_patience = 10ms;
constexpr auto pause_of_polls = 2ms;
/// Ranks that wait look for refusals every 100 ms.
constexpr std::chrono::nanoseconds longest_pause_of_polls = 32ms;
constexpr int ranks_of_word = 32;

std::string key(std::string_view what, int rank) {
  return fmt::format("{}/{}", what, rank);
}

[[noreturn]] void throw_silent() {
  throw Error(Errc::timeout, "the store does not answer");
}

std::string key_of_abandoned(std::uint64_t call) {
  return fmt::format("abandoned/{}", call);
}

std::string key_of_refused(std::uint64_t call, int word) {
  return fmt::format("refused/{}/{}", call, word);
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

Bytes encode(const Refusal& refusal, int rank) {
  Writer out;
  out.u64(refusal.call).i32(rank).u8(refusal.is_difference ? 1 : 0).text(refusal.text);
  return out.take();
}

Refusal decode_refusal(const Bytes& bytes) {
  Reader in(bytes, Errc::mismatch, "a peer's refusal");
  Refusal refusal;
  refusal.call = in.u64();
  refusal.rank = in.i32();
  refusal.is_difference = in.u8() != 0;
  refusal.text = in.text();
  in.end();
  return refusal;
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

Error with_message(const Error& error, Errc code, int rank, const std::string& message,
                   const std::vector<int>& absent = {}) {
  auto where = error.where();
  where.rank = rank;
  where.missing = absent;
  return {code, message, where};
}

}  // namespace

std::uint64_t call_id(std::string_view group, std::uint64_t seq) noexcept {
  Hash hash;
  hash.add(group);
  hash.add(seq);
  return hash.value();
}

std::uint64_t pair_id(std::string_view group, int rank, const Op& op) noexcept {
  const bool sends = op.kind == Operation::send;
  Hash hash;
  hash.add(group);
  hash.add(~std::uint64_t{0});  // No collective has this number.
  hash.add(static_cast<std::uint64_t>(sends ? rank : op.peer));
  hash.add(static_cast<std::uint64_t>(sends ? op.peer : rank));
  hash.add(static_cast<std::uint64_t>(op.tag));
  hash.add(op.seq);
  return hash.value();
}

Agreement::Agreement(const std::shared_ptr<Store>& store, int rank, int size)
    : failures_(store), store_(make_prefix_store(store, "agreement/")), rank_(rank), size_(size) {}

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

void Agreement::refuse(const Refusal& refusal) noexcept {
  try {
    if (!answers()) return;
    if (!refusal.entered) count_abandoned(refusal.call, true);
    const auto number = store_->add("refusals", 1);
    store_->set(fmt::format("refusal/{}", number), encode(refusal, rank_));
  } catch (...) {  // Without the store the peers wait until their deadline.
  }
}

std::vector<Refusal> Agreement::new_refusals() noexcept {
  std::vector<Refusal> found;
  read_all_ = false;
  try {
    const auto count = peek(*store_, "refusals");
    if (!count) return found;
    while (numbered_ < std::stoll(to_text(*count))) unread_.push_back(++numbered_);
    // A rank takes the refusal's number before it writes the refusal, and may fail in between.
    std::vector<std::int64_t> missing;
    for (const auto number : unread_) {
      if (const auto bytes = peek(*store_, fmt::format("refusal/{}", number)))
        found.push_back(decode_refusal(*bytes));
      else
        missing.push_back(number);
    }
    {
      const std::lock_guard lock(refused_mutex_);
      for (const auto& refusal : found) refused_.try_emplace(refusal.call, refusal);
    }
    unread_ = std::move(missing);
    read_all_ = unread_.empty();
  } catch (...) {  // Those found have not left unread_, and are found again.
  }
  return found;
}

const Refusal* Agreement::refusal_of(std::uint64_t call) const noexcept {
  const std::lock_guard lock(refused_mutex_);
  const auto found = refused_.find(call);
  return found == refused_.end() ? nullptr : &found->second;
}

void Agreement::abandon(std::uint64_t call) {
  if (!answers()) throw_silent();
  count_abandoned(call, false);
}

void Agreement::count_abandoned(std::uint64_t call, bool refused) {
  {
    const std::lock_guard lock(refused_mutex_);
    if (!abandoned_.insert(call).second) return;
  }
  if (refused)
    (void)store_->add(key_of_refused(call, rank_ / ranks_of_word),
                      std::int64_t{1} << rank_ % ranks_of_word);
  (void)store_->add(key_of_abandoned(call), 1);
}

std::vector<int> Agreement::await_abandoned(std::uint64_t call, std::span<const int> ranks,
                                            Deadline limit) {
  // W ranks do this at the same time, so none reads a key of each rank.
  for (auto pause = longest_pause_of_polls / 32;;
       pause = std::min(2 * pause, longest_pause_of_polls)) {
    bool is_answer = true;
    const auto count = peek(*store_, key_of_abandoned(call), is_answer).value_or(to_bytes("0"));
    if (!is_answer) throw_silent();
    if (std::stoll(to_text(count)) >= std::ssize(ranks)) break;
    if (limit.expired())
      throw Error(Errc::timeout, fmt::format("{} of {} ranks have left the refused call",
                                             to_text(count), ranks.size()));
    std::this_thread::sleep_for(std::min(pause, limit.remaining()));
  }
  std::map<int, std::int64_t> words;
  std::vector<int> abandoned;
  for (const int r : ranks) {
    const int word = r / ranks_of_word;
    const auto [found, is_new] = words.try_emplace(word);
    if (is_new) {
      bool is_answer = true;
      const auto bits = peek(*store_, key_of_refused(call, word), is_answer);
      if (!is_answer) throw_silent();
      if (bits) found->second = std::stoll(to_text(*bits));
    }
    if ((found->second >> r % ranks_of_word & 1) == 0) abandoned.push_back(r);
  }
  if (std::ranges::find(abandoned, rank_) == abandoned.end()) abandoned.clear();
  return abandoned;
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

Error name_missing(const Error& cause, std::span<const Presence> ranks, std::string_view called,
                   const GroupNames& names) {
  std::vector<int> entered;
  std::vector<int> absent;
  std::string missing;
  int origin = -1;
  bool origin_waits = false;
  int first_left = -1;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const auto& rank = ranks[i];
    const int number = names(static_cast<int>(i));
    if (rank.entered) {
      entered.push_back(number);
      continue;
    }
    absent.push_back(number);
    const bool waits = !rank.left && !rank.last.empty();
    if (origin < 0 || (origin_waits && !waits)) {
      origin = number;
      origin_waits = waits;
    }
    if (rank.left && cause.code() == Errc::peer_lost && first_left < 0) first_left = number;
    missing += fmt::format("{}{}", missing.empty() ? "" : ", ", number);
    if (rank.left)
      missing += " (has left the group)";
    else if (!rank.last.empty())
      missing += fmt::format(" ({})", rank.last);
  }
  if (missing.empty())
    return with_message(cause, cause.code(), cause.where().rank,
                        fmt::format("{}; all ranks have entered, so the call is slower than the "
                                    "deadline allows, or a rank or its device has stopped",
                                    cause.message()));
  return with_message(
      cause, cause.code(), first_left < 0 ? origin : first_left,
      fmt::format("{}; entered: {}; missing: {}{}{}", cause.message(), list_ranks(entered), missing,
                  called.empty() ? "" : "; called: ", called),
      absent);
}

}  // namespace tutti::internal
