#include "backend/refusals.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "backend/peek.hpp"
#include "store/checks.hpp"
#include "values/bytes.hpp"
#include "values/hash.hpp"

// The keys, which begin with "agreement/":
//   refusals              the number of refused calls
//   refusal/<number>      one refused call
//   abandoned/<call>      the number of ranks that send nothing more for this refused call
//   refused/<call>/<i>    a bit for each rank from 32 i on: it refused the call itself

namespace tutti::internal {
namespace {

using namespace std::chrono_literals;

/// Ranks that wait look for refusals every 100 ms.
constexpr std::chrono::nanoseconds longest_pause_of_polls = 32ms;
constexpr int ranks_of_word = 32;

[[noreturn]] void throw_silent() {
  throw Error(Errc::timeout, "the store does not answer");
}

std::string key_of_abandoned(std::uint64_t call) {
  return fmt::format("abandoned/{}", call);
}

std::string key_of_refused(std::uint64_t call, int word) {
  return fmt::format("refused/{}/{}", call, word);
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

Refusals::Refusals(std::shared_ptr<Store> store, int rank, std::function<bool()> answers)
    : store_(std::move(store)), rank_(rank), answers_(std::move(answers)) {}

void Refusals::add(const Refusal& refusal) noexcept {
  try {
    if (!answers_()) return;
    if (!refusal.entered) count_abandoned(refusal.call, true);
    const auto number = store_->add("refusals", 1);
    store_->set(fmt::format("refusal/{}", number), encode(refusal, rank_));
  } catch (...) {  // Without the store the peers wait until their deadline.
  }
}

std::vector<Refusal> Refusals::read_new() noexcept {
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

const Refusal* Refusals::of(std::uint64_t call) const noexcept {
  const std::lock_guard lock(refused_mutex_);
  const auto found = refused_.find(call);
  return found == refused_.end() ? nullptr : &found->second;
}

void Refusals::abandon(std::uint64_t call) {
  if (!answers_()) throw_silent();
  count_abandoned(call, false);
}

void Refusals::count_abandoned(std::uint64_t call, bool refused) {
  {
    const std::lock_guard lock(refused_mutex_);
    if (!abandoned_.insert(call).second) return;
  }
  if (refused)
    (void)store_->add(key_of_refused(call, rank_ / ranks_of_word),
                      std::int64_t{1} << rank_ % ranks_of_word);
  (void)store_->add(key_of_abandoned(call), 1);
}

std::vector<int> Refusals::await_abandoned(std::uint64_t call, std::span<const int> ranks,
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

}  // namespace tutti::internal
