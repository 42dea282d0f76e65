#include "run/hang_report.hpp"

#include <algorithm>
#include <exception>

#include <fmt/format.h>

#include "common/duration.hpp"
#include "common/text.hpp"

namespace tutti::tool {
namespace {

using Moment = std::chrono::steady_clock::time_point;

/// A collective that a rank had begun when the cause came up. What it began later, when the group
/// was broken already, does not count.
bool begun(const TraceEntry& entry, Moment cause) {
  return !is_point_to_point(entry.operation) && entry.started <= cause;
}

bool entered(const Outcome& outcome, std::int64_t seq, Moment cause) {
  return std::any_of(outcome.trace.begin(), outcome.trace.end(), [&](const TraceEntry& entry) {
    return begun(entry, cause) && static_cast<std::int64_t>(entry.seq) >= seq;
  });
}

/// "3 (host, pid 4411)".
std::string where_is(int rank, const World& world) {
  std::string text = fmt::format("{}", rank);
  for (const RankInfo& info : world.ranks)
    if (info.rank == rank) text += fmt::format(" ({}, pid {})", info.host, info.pid);
  return text;
}

/// "3 (host, pid 4411) last seen 61.2 s ago in all_reduce #204".
std::string last_seen(const Outcome& outcome, const World& world, Moment cause) {
  std::string text = where_is(outcome.rank, world);
  if (outcome.silent) return text + " sent no word: killed, stopped or stuck";
  const auto last = std::find_if(outcome.trace.rbegin(), outcome.trace.rend(),
                                 [&](const TraceEntry& entry) { return begun(entry, cause); });
  if (last == outcome.trace.rend()) return text + " made no call";
  return text + fmt::format(" last seen {:.1f} s ago in {} #{}", seconds(cause - last->started),
                            name_of(last->operation), last->seq);
}

std::string place(const Outcome& outcome, const Error& error) {
  std::string text;
  const Position& at = outcome.position;
  if (at.bytes >= 0) {
    text = fmt::format("measuring {}", at.what);
    if (at.bytes > 0) text += fmt::format(", size {}", format_bytes(at.bytes));
    text += at.iteration >= 0 ? fmt::format(", iteration {}", at.iteration)
                              : std::string(", warm-up or check");
  }
  if (!error.where().group.empty())
    text += fmt::format("{}group {}", text.empty() ? "" : ", ", error.where().group);
  return text.empty() ? text : fmt::format(" ({})", text);
}

}  // namespace

std::optional<Error> library_error(const Outcome& outcome) {
  if (!outcome.error) return std::nullopt;
  try {
    std::rethrow_exception(outcome.error);
  } catch (const Error& error) {
    return error;
  } catch (...) {
    return std::nullopt;
  }
}

std::string error_text(const Outcome& outcome) {
  if (!outcome.error) return "";
  try {
    std::rethrow_exception(outcome.error);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "unknown exception";
  }
}

const Outcome* first_cause(const std::vector<Outcome>& outcomes) {
  const Outcome* first = nullptr;
  // Who lost a peer knows more than who was only told that the group is broken.
  const auto echo = [](const Outcome& outcome) {
    const auto error = library_error(outcome);
    if (error && error->code() == Errc::aborted) return 2;
    return error && error->code() == Errc::peer_lost ? 1 : 0;
  };
  for (const Outcome& outcome : outcomes) {
    if (!outcome.error) continue;
    const auto order = [&](const Outcome& o) { return std::pair(echo(o), o.ended); };
    if (first == nullptr || order(outcome) < order(*first)) first = &outcome;
  }
  return first;
}

std::string silent_ranks(const std::vector<Outcome>& outcomes, const World& world) {
  std::string text;
  for (const Outcome& outcome : outcomes)
    if (outcome.silent)
      text += fmt::format("  {}{}\n", text.empty() ? "missing : " : "          ",
                          last_seen(outcome, world, {}));
  return text;
}

std::string hang_report(const std::vector<Outcome>& outcomes, const World& world,
                        std::chrono::nanoseconds timeout) {
  const Outcome* cause = first_cause(outcomes);
  const std::optional<Error> error = cause == nullptr ? std::nullopt : library_error(*cause);
  if (!error) return {};
  const Error::Where& where = error->where();
  const std::string operation = where.operation.empty() ? "making the group" : where.operation;

  std::string text =
      error->code() == Errc::timeout
          ? fmt::format("error: {} timed out after {}{}\n", operation, format_duration(timeout),
                        place(*cause, *error))
          : fmt::format("error: the ranks disagree about {}{}\n", operation, place(*cause, *error));
  std::string missing_ranks;
  if (where.seq >= 0) {
    std::string in;
    std::vector<std::string> missing;
    for (const Outcome& outcome : outcomes) {
      if (entered(outcome, where.seq, cause->ended)) {
        in += fmt::format(" {}", outcome.rank);
      } else {
        missing.push_back(last_seen(outcome, world, cause->ended));
        missing_ranks += fmt::format("{}{}", missing_ranks.empty() ? "" : ", ", outcome.rank);
      }
    }
    if (!in.empty()) text += fmt::format("  entered : {}\n", in.substr(1));
    for (std::size_t i = 0; i < missing.size(); ++i)
      text += fmt::format("  {}{}\n", i == 0 ? "missing : " : "            ", missing[i]);
  }
  text += fmt::format("  cause   : rank {}: {}\n", cause->rank, error->what());
  if (error->code() == Errc::timeout) {
    std::string reason = "A rank is stuck inside of the call.";
    if (where.seq < 0) reason = "Not every rank came: was each of them started?";
    if (!missing_ranks.empty())
      reason = fmt::format("Rank {} did not make the call in time.", missing_ranks);
    text += fmt::format("  hint    : {} If it was only slow, use a larger --timeout\n", reason);
  }
  return text;
}

}  // namespace tutti::tool
