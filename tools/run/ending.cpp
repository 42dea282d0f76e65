#include "run/ending.hpp"

#include <charconv>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <tutti/deadline.hpp>
#include <tutti/store/store.hpp>

#include "common/message.hpp"
#include "run/hang_report.hpp"

namespace tutti::tool {
namespace {

using Steady = std::chrono::steady_clock;
using Wall = std::chrono::system_clock;

constexpr const char* verdict_key = "end/verdict";

std::string key_of(int rank) {
  return fmt::format("end/{}", rank);
}

/// A moment as hosts share it. Processes of one host agree exactly, others as well as their clocks.
std::int64_t to_wall(Steady::time_point moment) {
  const auto then =
      Wall::now() + std::chrono::duration_cast<Wall::duration>(moment - Steady::now());
  return std::chrono::nanoseconds(then.time_since_epoch()).count();
}
Steady::time_point from_wall(std::int64_t ns) {
  const auto then =
      Wall::time_point(std::chrono::duration_cast<Wall::duration>(std::chrono::nanoseconds(ns)));
  return Steady::now() + std::chrono::duration_cast<Steady::duration>(then - Wall::now());
}

/// An exception as it travels: a Failure, which has an exit code, or an Error.
struct Thrown {
  std::optional<Exit> exit{};
  Errc errc{};
  std::string text{};
  Error::Where where{};
};

void parts(Message& message, Thrown& thrown) {
  auto& where = thrown.where;
  message(thrown.exit, thrown.errc, thrown.text, where.group, where.operation, where.seq,
          where.rank);
}

Thrown thrown_by(const std::exception_ptr& error) {
  const auto failed = [](Exit code, std::string text) {
    return Thrown{code, {}, std::move(text), {}};
  };
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return {{}, e.code(), e.message(), e.where()};
  } catch (const Failure& failure) {
    return failed(failure.code(), failure.what());
  } catch (const std::exception& e) {
    return failed(Exit::internal, e.what());
  } catch (...) {
    return failed(Exit::internal, "unknown exception");
  }
}

std::exception_ptr to_exception(const Thrown& thrown) {
  if (thrown.exit) return std::make_exception_ptr(Failure(*thrown.exit, thrown.text));
  return std::make_exception_ptr(Error(thrown.errc, thrown.text, thrown.where));
}

/// A call of a rank that failed.
struct LastCall {
  std::uint64_t seq = 0;
  Operation operation{};
  std::int64_t started = 0;
};

void parts(Message& message, LastCall& call) {
  message(call.seq, call.operation, call.started);
}

/// An outcome as it travels.
struct Ending {
  std::int64_t ended = 0;
  std::optional<Thrown> error{};
  Position position{};
  std::vector<LastCall> trace{};  ///< Of a rank that failed.
};

void parts(Message& message, Ending& ending) {
  auto& at = ending.position;
  message(ending.ended, ending.error, at.what, at.bytes, at.iteration, ending.trace);
}

std::string to_text(const Outcome& outcome) {
  Ending ending{to_wall(outcome.ended), {}, outcome.position, {}};
  if (outcome.error) {
    ending.error = thrown_by(outcome.error);
    for (const TraceEntry& entry : outcome.trace)
      ending.trace.push_back({entry.seq, entry.operation, to_wall(entry.started)});
  }
  return to_message(ending);
}

Outcome outcome_from(int rank, const std::string& text) {
  const auto ending = from_message<Ending>(text);
  Outcome outcome;
  outcome.rank = rank;
  outcome.ended = from_wall(ending.ended);
  if (!ending.error) return outcome;
  outcome.error = to_exception(*ending.error);
  outcome.position = ending.position;
  for (const LastCall& call : ending.trace) {
    TraceEntry entry;
    entry.seq = call.seq;
    entry.operation = call.operation;
    entry.started = from_wall(call.started);
    outcome.trace.push_back(entry);
  }
  return outcome;
}

/// On the other ranks: sends `own` to rank 0, and gives rank 0's verdict.
/// @throws Error timeout when rank 0 gives none within `patience`.
Exit report_ending(Store& store, const Outcome& own, std::chrono::nanoseconds patience) {
  store.set(key_of(own.rank), to_text(own));
  const std::string text = store.get_text(verdict_key, Deadline::after(patience));
  int code = static_cast<int>(Exit::internal);
  std::from_chars(text.data(), text.data() + text.size(), code);
  return static_cast<Exit>(code);
}

/// On rank 0: its own outcome and the others' in rank order. One that sent nothing within
/// `patience` is `silent`.
std::vector<Outcome> collect_endings(Store& store, const Outcome& own, int size,
                                     std::chrono::nanoseconds patience) {
  std::vector<Outcome> outcomes{own};
  const auto deadline = Deadline::after(patience);
  for (int rank = 1; rank < size; ++rank) {
    try {
      outcomes.push_back(outcome_from(rank, store.get_text(key_of(rank), deadline)));
    } catch (const Error& error) {
      if (error.code() != Errc::timeout) throw;
      Outcome silent;
      silent.rank = rank;
      silent.silent = true;
      silent.error = std::make_exception_ptr(
          Error(Errc::peer_lost, fmt::format("rank {} sent no word of how it ended", rank)));
      silent.ended = Steady::now();
      outcomes.push_back(silent);
    }
  }
  return outcomes;
}

void announce(Store& store, Exit verdict) {
  store.set(verdict_key, fmt::format("{}", static_cast<int>(verdict)));
}

/// The exit code of the command when a rank ended so.
Exit exit_code_of(const Outcome& outcome) {
  if (!outcome.error) return Exit::ok;
  try {
    std::rethrow_exception(outcome.error);
  } catch (const Failure& failure) {
    return failure.code();
  } catch (const Error& error) {
    switch (error.code()) {
      case Errc::timeout:
      case Errc::mismatch:
        return Exit::timeout;
      case Errc::unsupported:
      case Errc::resource_exhausted:
        return Exit::unavailable;
      case Errc::invalid_argument:
      case Errc::count_overflow:
      case Errc::not_initialized:
      case Errc::peer_lost:
      case Errc::aborted:
      case Errc::forked:
      case Errc::backend:
        return Exit::internal;
    }
  } catch (...) {
  }
  return Exit::internal;
}

}  // namespace

Exit report_failure(const std::vector<Outcome>& outcomes, const Outcome& cause,
                    std::chrono::nanoseconds timeout, bool skip_unavailable, RunRecord& record,
                    std::FILE* err) {
  const Exit code = exit_code_of(cause);
  record.error = error_text(cause);
  record.status = code == Exit::timeout ? Status::timeout : Status::error;
  if (code == Exit::timeout) {
    fmt::print(err, "{}", hang_report(outcomes, record.world, timeout));
  } else if (code == Exit::unavailable && skip_unavailable) {
    fmt::print(err, "skipped: {}\n", record.error);
    return Exit::skipped;
  } else {
    fmt::print(err, "error: {}\n{}", record.error, silent_ranks(outcomes, record.world));
  }
  return code;
}

Exit run_to_end(const RankSource& source, const RunOptions& options, const RankBody& body,
                const std::function<std::chrono::nanoseconds(const Outcome& own)>& patience,
                const std::function<Exit(const std::vector<Outcome>&)>& conclude) {
  GroupOptions group = source.group;
  if (source.kind == RankSource::Kind::threads)
    return conclude(run_threads(group.size, group, options.decorate, body, source.placement));
  if (options.decorate)
    group.decorate = [&](std::unique_ptr<Backend> inner) {
      return options.decorate(group.rank, std::move(inner));
    };
  const Outcome own = run_rank(group, body);
  if (group.size == 1) return conclude({own});
  const auto store = make_prefix_store(group.store, "tool/");
  if (group.rank != 0) {
    try {
      // Rank 0 may be in the last call until its deadline, and then writes the files.
      return report_ending(*store, own, options.timeout + std::chrono::seconds(10));
    } catch (const Error& error) {
      if (!own.error) throw;
      throw Failure(exit_code_of(own), fmt::format("rank {}: {} (and from rank 0: {})", own.rank,
                                                   error_text(own), error.what()));
    }
  }
  const std::vector<Outcome> outcomes = collect_endings(*store, own, group.size, patience(own));
  try {
    const Exit code = conclude(outcomes);
    announce(*store, code);
    return code;
  } catch (const Failure& failure) {
    announce(*store, failure.code());
    throw;
  }
}

}  // namespace tutti::tool
