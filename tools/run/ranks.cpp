#include "run/ranks.hpp"

#include <exception>
#include <future>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "common/duration.hpp"

namespace tutti::tool {
namespace {

Exit exit_of(Errc code) {
  switch (code) {
    case Errc::invalid_argument:  // The tool's own arguments are right, so it is the user's.
      return Exit::usage;
    case Errc::timeout:
    case Errc::mismatch:
      return Exit::timeout;
    case Errc::unsupported:
    case Errc::resource_exhausted:
      return Exit::unavailable;
    default:
      return Exit::internal;
  }
}

/// The exception that is being handled.
Failed current_failure() {
  try {
    throw;
  } catch (const Error& error) {
    return {exit_of(error.code()), error.code(), error.what(), error.where()};
  } catch (const Failure& failure) {
    return {failure.code(), {}, failure.what(), {}};
  } catch (const std::exception& error) {
    return {Exit::internal, {}, error.what(), {}};
  } catch (...) {
    return {Exit::internal, {}, "unknown exception", {}};
  }
}

std::optional<LastCall> last_call(const Trace& trace) {
  const auto now = std::chrono::steady_clock::now();
  std::optional<LastCall> last;
  for (const TraceEntry& entry : trace)
    if (entry.state == TraceEntry::State::done && !is_point_to_point(entry.operation))
      last = {entry.operation, entry.seq, seconds(now - entry.started)};
  return last;
}

}  // namespace

Outcome run_rank(GroupOptions options, const Decorate& decorate, const RankBody& body) {
  if (decorate)
    options.decorate = [&](std::unique_ptr<Backend> backend) {
      return decorate(options.rank, std::move(backend));
    };
  Outcome outcome;
  outcome.rank = options.rank;
  std::optional<ProcessGroup> group;
  try {
    group.emplace(ProcessGroup::create(options));
    const auto store = options.store ? options.store : make_memory_store();
    Rank rank{*group, make_prefix_store(store, "tool/"), outcome.position, options};
    body(rank);
  } catch (...) {
    outcome.failed = current_failure();
  }
  if (outcome.failed && group) {
    outcome.last = last_call(group->trace());
    group->abort(fmt::format("rank {} failed: {}", options.rank, outcome.failed->text));
  }
  return outcome;
}

std::vector<Outcome> run_threads(const GroupOptions& options, const Decorate& decorate,
                                 const RankBody& body, const DevicePlacement& where) {
  const auto store = make_memory_store();
  std::vector<Outcome> outcomes(static_cast<std::size_t>(options.size));
  std::promise<bool> all_started;
  const std::shared_future<bool> go = all_started.get_future().share();
  std::optional<Failure> failure;
  {
    std::vector<std::jthread> threads;
    threads.reserve(outcomes.size());
    try {
      for (int rank = 0; rank < options.size; ++rank) {
        GroupOptions own = options;
        own.store = store;
        own.rank = rank;
        own.device = where.of(rank);
        threads.emplace_back([own = std::move(own), go, &decorate, &body,
                              &outcome = outcomes[static_cast<std::size_t>(rank)]] {
          // Unless all threads have started, the ranks would wait for a missing rank in the
          // rendezvous.
          if (go.get()) outcome = run_rank(own, decorate, body);
        });
      }
    } catch (const std::system_error& e) {
      failure.emplace(Exit::unavailable,
                      fmt::format("cannot start {} threads, the system allowed {}: {}",
                                  options.size, threads.size(), e.what()));
    }
    all_started.set_value(!failure);
  }
  if (failure) throw *failure;
  return outcomes;
}

}  // namespace tutti::tool
