#include "backend/heartbeats.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "backend/rendezvous.hpp"
#include "store/answer_limit.hpp"
#include "store/checks.hpp"
#include "values/host_identity.hpp"

// The keys are those of Agreement:
//   agreement/beat/<rank>  "<count> <process> <host>"; the count grows with every beat
//   agreement/left/<rank>  the rank has left

namespace tutti::internal {
namespace {

using namespace std::chrono_literals;

/// The longest time that one question counts for, and that a beat waits for its answer.
constexpr std::chrono::nanoseconds longest_question = 600ms;
/// A look reads `least_reads` ranks, or 1 / `looks_at_all` of all if that is more. So all ranks are
/// read within a quarter of `dead_after`, or later if the store is slow.
constexpr std::size_t least_reads = 32;
constexpr std::size_t looks_at_all = 5;
/// The longest time between two looks of one wait: questions to a silent store may be in between.
constexpr std::chrono::nanoseconds longest_pause = 3s;

std::string beat_of(int rank) {
  return fmt::format("beat/{}", rank);
}

double seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

bool is_stopped(int process) noexcept {
  try {
    std::ifstream file(fmt::format("/proc/{}/stat", process));
    std::string text;
    std::getline(file, text);
    const auto name_end = text.rfind(") ");  // The name may contain anything.
    return name_end != std::string::npos && name_end + 2 < text.size() &&
           (text[name_end + 2] == 'T' || text[name_end + 2] == 't');
  } catch (...) {  // No memory.
    return false;
  }
}

Error silent_error(const GroupNames& names, int rank, std::chrono::nanoseconds time, int process) {
  const auto why = process != 0
                       ? fmt::format("its process {} is stopped", process)
                       : std::string("its process is stopped, or its host or link is down");
  return {
      Errc::peer_lost,
      fmt::format("rank {} has not responded for {:.1f} s: {}", names(rank), seconds(time), why),
      {.group = names.group(), .rank = names(rank)}};
}

Heartbeats::Heartbeats(const BackendInit& init)
    : names_(init.name, init.whole), rank_(init.rank), logger_(init.logger) {
  if (init.size == 1 || init.dead_after.count() <= 0 || init.store->in_process()) return;
  store_ = make_prefix_store(init.store, "agreement/");
  dead_after_ = init.dead_after;
  interval_ = dead_after_ / 10;
  const auto host = host_identity();
  process_ = fmt::format(" {} {} {}", ::getpid(), host.boot, host.processes);
  beat();
}

std::optional<Error> Heartbeats::look(Clock::time_point now, std::span<const int> awaited) {
  if (!is_on()) return std::nullopt;
  if (now >= next_beat_) {
    next_beat_ = std::max(next_beat_ + interval_, now + interval_ / 2);
    if (ask_store()) {  // Otherwise the write would block.
      try {
        const AnswerLimit limit(longest_question);  // The store may stop after the question.
        beat();
      } catch (...) {  // The process with the store has ended, or is stopped.
      }
    }
    if (auto silent = judge_store(awaited)) return silent;
  }
  // A rank that begins to wait looks at once.
  if (awaited.empty()) next_read_ = {};
  if (awaited.empty() || now < next_read_ || !store_answers_) return std::nullopt;
  next_read_ = now + pause();
  try {
    return look_at_peers(now, awaited);
  } catch (...) {  // The process with the store has ended, or no memory: no rank is judged.
    return std::nullopt;
  }
}

bool Heartbeats::ask_store() noexcept {
  if (!is_on()) return true;
  const auto start = Clock::now();
  try {
    (void)peek(*store_, beat_of(rank_), store_answers_);
  } catch (...) {  // The program may supply the store, so it may throw any type.
    // A store that was silent before has lost its connection because of that. Otherwise its process
    // has ended, which tells nothing about the ranks.
  }
  const auto since = std::min<std::chrono::nanoseconds>(start - asked_, 2 * interval_);
  asked_ = Clock::now();
  const auto took = std::min<std::chrono::nanoseconds>(asked_ - start, longest_question);
  store_silence_ = store_answers_ ? 0ns : store_silence_ + since + took;
  return store_answers_;
}

void Heartbeats::beat() {
  store_->set(beat_of(rank_), to_bytes(std::to_string(++count_) + process_));
}

std::optional<Error> Heartbeats::judge_store(std::span<const int> awaited) {
  // A wait that has just begun was not seen yet.
  if (awaited.empty())
    store_silence_ = std::min<std::chrono::nanoseconds>(store_silence_, 2 * interval_);
  if (!is_on() || store_silence_ < dead_after_) return std::nullopt;
  for (const int rank : awaited)
    if (const int process = stopped_process(peers_[rank].beat); process != 0)
      return silent_error(names_, rank, store_silence_, process);
  return Error(
      Errc::peer_lost,
      fmt::format("the store has not answered rank {} for {:.1f} s: the process that hosts "
                  "it is stopped, or its host or link is down",
                  names_(rank_), seconds(store_silence_)),
      {.group = names_.group()});
}

std::optional<Error> Heartbeats::look_at_peers(Clock::time_point now,
                                               std::span<const int> awaited) {
  time_ += std::min<std::chrono::nanoseconds>(now - std::exchange(looked_, now), 2 * interval_);
  std::vector<std::pair<int, Peer*>> order;
  for (const int rank : awaited) order.emplace_back(rank, &peers_[rank]);
  const auto most_reads = std::max(least_reads, (order.size() + looks_at_all - 1) / looks_at_all);
  if (order.size() > most_reads)  // The silent ones first, and the others in turn.
    std::ranges::stable_sort(order, {}, [](const auto& entry) {
      return std::pair(entry.second->silence == 0ns, entry.second->looked);
    });
  const auto end = Clock::now() + pause() / 10;
  std::size_t reads = 0;
  for (const auto& [rank, peer] : std::span(order).first(std::min(order.size(), most_reads))) {
    if (++reads > least_reads && Clock::now() > end) break;
    const auto bytes = peek(*store_, beat_of(rank), store_answers_);
    if (!store_answers_) return std::nullopt;
    // One beat that was read twice proves nothing: the rank may have been without the store.
    const auto since = std::min(time_ - std::exchange(peer->looked, time_), dead_after_ / 2);
    if (!bytes) continue;  // Still in creation.
    auto beat = to_text(*bytes);
    if (beat != peer->beat) {
      peer->beat = std::move(beat);
      peer->silence = 0ns;
      continue;
    }
    peer->silence += since;
    if (auto dead = judge(rank, *peer)) return dead;
  }
  return std::nullopt;
}

std::optional<Error> Heartbeats::judge(int rank, Peer& peer) {
  const bool is_dead = peer.silence >= dead_after_;
  const bool is_new = peer.silence >= 3 * interval_ && !peer.is_suspected;
  if ((!is_dead && !is_new) || has_left(rank)) return std::nullopt;
  if (is_dead) return silent_error(names_, rank, peer.silence, stopped_process(peer.beat));
  peer.is_suspected = true;
  log(
      fmt::format("group '{}': rank {} has been silent for {:.1f} s; it counts as dead after {} s "
                  "(dead_after)",
                  names_.group(), names_(rank), seconds(peer.silence), seconds(dead_after_)));
  return std::nullopt;
}

int Heartbeats::stopped_process(const std::string& beat) const {
  const auto begin = beat.find(' ');
  const auto end = begin == std::string::npos ? begin : beat.find(' ', begin + 1);
  const auto host = process_.find(' ', 1);
  if (end == std::string::npos || beat.substr(end) != process_.substr(host)) return 0;
  int process = 0;
  (void)std::from_chars(beat.data() + begin + 1, beat.data() + end, process);
  return process > 0 && is_stopped(process) ? process : 0;
}

bool Heartbeats::has_left(int rank) {
  return peek(*store_, fmt::format("left/{}", rank)).has_value();
}

void Heartbeats::log(std::string_view text) const noexcept {
  try {
    if (logger_) logger_(LogLevel::warning, text);
  } catch (...) {  // An error of the logger is not one of the group.
  }
}

bool StoppedProcess::is_dead(int process, Clock::time_point now) noexcept {
  if (dead_after_.count() <= 0 || process == 0) return false;
  const auto since = now - looked_;
  if (process != process_ || since > std::max(4 * pause_, longest_pause)) {  // A new wait.
    *this = StoppedProcess(dead_after_);
    process_ = process;
    looked_ = now;
    return false;
  }
  if (since < pause_) return false;
  const bool stopped = is_stopped(process);
  // This rank may have been stopped, too.
  const auto counted = std::min<std::chrono::nanoseconds>(since, 4 * pause_);
  stopped_ = stopped && was_stopped_ ? stopped_ + counted : 0ns;
  was_stopped_ = stopped;
  looked_ = now;
  return stopped_ >= dead_after_;
}

}  // namespace tutti::internal
