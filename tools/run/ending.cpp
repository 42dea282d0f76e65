#include "run/ending.hpp"

#include <set>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <tutti/deadline.hpp>
#include <tutti/store/store.hpp>

#include "common/duration.hpp"
#include "common/message.hpp"
#include "common/text.hpp"

namespace tutti {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Error::Where, group, operation, seq, rank, missing)

}  // namespace tutti

namespace tutti::tool {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LastCall, operation, seq, seconds_ago)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Failed, exit, errc, text, where)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Outcome, rank, failed, last)

namespace {

constexpr const char* status_key = "end/status";

std::string key_of(int rank) {
  return fmt::format("end/{}", rank);
}

/// Collects all outcomes on rank 0, in rank order, including rank 0's own. A rank without an
/// outcome within `patience` is `silent`.
std::vector<Outcome> collect_outcomes(Store& store, const Outcome& own, int size,
                                      std::chrono::nanoseconds patience) {
  std::vector<Outcome> outcomes{own};
  const auto deadline = Deadline::after(patience);
  for (int rank = 1; rank < size; ++rank) {
    try {
      outcomes.push_back(from_message<Outcome>(store.get_text(key_of(rank), deadline)));
    } catch (const Error& error) {
      if (error.code() != Errc::timeout) throw;
      Outcome silent;
      silent.rank = rank;
      silent.silent = true;
      silent.failed = {Exit::internal,
                       Errc::peer_lost,
                       fmt::format("rank {} did not report how it ended", rank),
                       {}};
      outcomes.push_back(silent);
    }
  }
  return outcomes;
}

/// "3 (host, pid 4411) last seen 61.2 s ago in all_reduce #204".
std::string last_seen(const Outcome& outcome, const World& world) {
  std::string text = fmt::format("{}", outcome.rank);
  for (const RankInfo& info : world.ranks)
    if (info.rank == outcome.rank) text += fmt::format(" ({}, pid {})", info.host, info.pid);
  if (outcome.silent) return text + " sent no report: killed, stopped or stuck";
  if (!outcome.last) return text + " made no call";
  return text + fmt::format(" last seen {:.1f} s ago in {} #{}", outcome.last->seconds_ago,
                            name_of(outcome.last->operation), outcome.last->seq);
}

/// Lines about these ranks; empty for none.
std::string missing_lines(const std::vector<Outcome>& outcomes, const std::set<int>& ranks,
                          const World& world) {
  std::string text;
  for (const Outcome& outcome : outcomes)
    if (ranks.contains(outcome.rank))
      text += fmt::format("  {}{}\n", text.empty() ? "missing : " : "          ",
                          last_seen(outcome, world));
  return text;
}

std::string progress_text(const Position& at, const std::string& group) {
  std::string text;
  if (at.bytes >= 0) {
    text = fmt::format("measuring {}", at.what);
    if (at.bytes > 0) text += fmt::format(", size {}", format_bytes(at.bytes));
    text += at.iteration >= 0 ? fmt::format(", iteration {}", at.iteration)
                              : std::string(", warm-up or check");
  }
  if (!group.empty()) text += fmt::format("{}group {}", text.empty() ? "" : ", ", group);
  return text.empty() ? text : fmt::format(" ({})", text);
}

/// Several lines about a call that failed by timeout or mismatch.
std::string hang_report(const std::vector<Outcome>& outcomes, const Outcome& cause,
                        const std::set<int>& missing, const World& world,
                        std::chrono::nanoseconds timeout) {
  const Failed& failed = *cause.failed;
  const bool late = failed.errc == Errc::timeout;
  const std::string& operation = failed.where.operation;
  // Shows rank 0's position: all ranks are in the same measurement, and those of other processes
  // send no position.
  std::string text = fmt::format(
      "error: {}{}{}\n", late ? "" : "the ranks disagree about ",
      operation.empty() ? "making the group" : operation,
      late ? fmt::format(" timed out after {}", format_duration(timeout)) : std::string());
  text.insert(text.size() - 1, progress_text(outcomes.front().position, failed.where.group));
  if (!missing.empty()) {
    std::vector<int> entered;
    for (const Outcome& outcome : outcomes)
      if (!missing.contains(outcome.rank)) entered.push_back(outcome.rank);
    if (!entered.empty()) text += fmt::format("  entered : {}\n", fmt::join(entered, " "));
    text += missing_lines(outcomes, missing, world);
  }
  text += fmt::format("  cause   : rank {}: {}\n", cause.rank, failed.text);
  if (!late) return text;
  std::string reason = "A rank is stuck inside of the call.";
  if (failed.where.seq < 0)
    reason = "Not every rank joined the group: check that all were started.";
  if (!missing.empty())
    reason = fmt::format("Rank{} {} did not make the call in time.", missing.size() == 1 ? "" : "s",
                         fmt::join(missing, ", "));
  return text +
         fmt::format("  hint    : {} If a rank was only slow, use a larger --timeout\n", reason);
}

}  // namespace

const Outcome* first_cause(const std::vector<Outcome>& outcomes) {
  // Orders outcomes by how likely they caused the others: a rank that failed by itself, a rank
  // that timed out, a rank that lost a peer, and last an aborted or silent rank.
  const auto echo = [](const Outcome& outcome) {
    const auto errc = outcome.failed->errc;
    if (errc == Errc::aborted) return 3;
    if (errc == Errc::peer_lost) return outcome.silent ? 3 : 2;
    return errc == Errc::timeout || errc == Errc::mismatch ? 1 : 0;
  };
  const Outcome* first = nullptr;
  for (const Outcome& outcome : outcomes)
    if (outcome.failed && (first == nullptr || echo(outcome) < echo(*first))) first = &outcome;
  return first;
}

Exit report_failure(const std::vector<Outcome>& outcomes, const Outcome& cause,
                    std::chrono::nanoseconds timeout, bool skip_unavailable, RunRecord& record,
                    std::FILE* err) {
  const Failed& failed = *cause.failed;
  record.error = failed.text;
  record.status = failed.exit == Exit::timeout ? Status::timeout : Status::error;
  std::set<int> missing;
  for (const Outcome& outcome : outcomes)
    if (outcome.silent) missing.insert(outcome.rank);
  if (failed.exit == Exit::timeout) {
    missing.insert(failed.where.missing.begin(), failed.where.missing.end());
    fmt::print(err, "{}", hang_report(outcomes, cause, missing, record.world, timeout));
  } else if (failed.exit == Exit::unavailable && skip_unavailable) {
    fmt::print(err, "skipped: {}\n", record.error);
    return Exit::skipped;
  } else {
    fmt::print(err, "error: {}\n{}", record.error, missing_lines(outcomes, missing, record.world));
  }
  return failed.exit;
}

Exit or_skipped(const RunOptions& options, std::FILE* err, const std::function<Exit()>& run) {
  try {
    return run();
  } catch (const Failure& failure) {
    if (failure.code() != Exit::unavailable || !options.skip_unavailable) throw;
    fmt::print(err, "skipped: {}\n", failure.what());
    return Exit::skipped;
  }
}

Exit run_to_end(const RankSource& source, const RunOptions& options, const RankBody& body,
                const std::function<std::chrono::nanoseconds(const Outcome& own)>& patience,
                const std::function<Exit(const std::vector<Outcome>&)>& conclude) {
  const GroupOptions& group = source.group;
  if (source.kind == RankSource::Kind::threads)
    return conclude(run_threads(group, options.decorate, body, source.placement));
  const Outcome own = run_rank(group, options.decorate, body);
  if (group.size == 1) return conclude({own});
  const auto store = make_prefix_store(group.store, "tool/");
  if (group.rank != 0) {
    try {
      store->set(key_of(own.rank), to_message(own));
      // Rank 0 may be in the last call until its deadline, and writes the files afterwards.
      const auto limit = Deadline::after(options.timeout + std::chrono::seconds(10));
      return from_message<Exit>(store->get_text(status_key, limit));
    } catch (const Error& error) {
      if (!own.failed) throw;
      throw Failure(
          own.failed->exit,
          fmt::format("rank {}: {} (and the exchange with rank 0 through the store failed: {})",
                      own.rank, own.failed->text, error.what()));
    }
  }
  const std::vector<Outcome> outcomes = collect_outcomes(*store, own, group.size, patience(own));
  const auto announce = [&](Exit status) { store->set(status_key, to_message(status)); };
  try {
    const Exit status = conclude(outcomes);
    announce(status);
    return status;
  } catch (const Failure& failure) {
    announce(failure.code());
    throw;
  }
}

}  // namespace tutti::tool
