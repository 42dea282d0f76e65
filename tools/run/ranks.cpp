#include "run/ranks.hpp"

#include <future>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "common/exit_code.hpp"

namespace tutti::tool {
namespace {

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "unknown exception";
  }
}

}  // namespace

Outcome run_rank(const GroupOptions& options, const RankBody& body) {
  Outcome outcome;
  outcome.rank = options.rank;
  std::optional<ProcessGroup> group;
  try {
    group.emplace(ProcessGroup::create(options));
    const auto store = options.store ? options.store : make_memory_store();
    Rank rank{*group, make_prefix_store(store, "tool/"), outcome.position};
    body(rank);
  } catch (...) {
    outcome.error = std::current_exception();
  }
  outcome.ended = std::chrono::steady_clock::now();
  if (outcome.error && group) {
    outcome.trace = group->trace();
    group->abort(fmt::format("rank {} failed: {}", options.rank, text_of(outcome.error)));
  }
  return outcome;
}

std::vector<Outcome> run_threads(int size, const GroupOptions& options, const Decorate& decorate,
                                 const RankBody& body, const Placement& where) {
  const auto store = make_memory_store();
  std::vector<Outcome> outcomes(static_cast<std::size_t>(size));
  std::promise<bool> all_started;
  const std::shared_future<bool> go = all_started.get_future().share();
  std::optional<Failure> failure;
  {
    std::vector<std::jthread> threads;
    threads.reserve(outcomes.size());
    try {
      for (int rank = 0; rank < size; ++rank) {
        GroupOptions own = options;
        own.store = store;
        own.rank = rank;
        own.size = size;
        own.device = where.of(rank);
        if (decorate)
          own.decorate = [rank, &decorate](std::unique_ptr<Backend> backend) {
            return decorate(rank, std::move(backend));
          };
        threads.emplace_back(
            [own = std::move(own), go, &body, &outcome = outcomes[static_cast<std::size_t>(rank)]] {
              // Without all of them the first ones would wait for a rendezvous that cannot come.
              if (go.get()) outcome = run_rank(own, body);
            });
      }
    } catch (const std::system_error& e) {
      failure.emplace(Exit::unavailable,
                      fmt::format("cannot start {} threads, the system allowed {}: {}", size,
                                  threads.size(), e.what()));
    }
    all_started.set_value(!failure);
  }
  if (failure) throw *failure;
  return outcomes;
}

}  // namespace tutti::tool
