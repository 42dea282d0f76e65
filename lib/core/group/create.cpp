#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <map>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include <tutti/version.hpp>

#include "backend/backend_choice.hpp"
#include "backend/rank_location.hpp"
#include "backend/rendezvous.hpp"
#include "group/checked.hpp"
#include "group/core.hpp"
#include "group/generation.hpp"
#include "group/membership.hpp"
#include "store/checks.hpp"
#include "values/current_error.hpp"
#include "values/environment_switch.hpp"
#include "values/fail.hpp"
#include "values/host_identity.hpp"
#include "values/log_level.hpp"

namespace tutti::internal {
namespace {

constexpr std::chrono::nanoseconds least_dead_after = std::chrono::milliseconds(100);
constexpr std::chrono::nanoseconds most_dead_after = std::chrono::hours(24);

std::chrono::nanoseconds dead_after_of_environment() {
  constexpr std::int64_t usual = 10;
  constexpr auto most = std::chrono::ceil<std::chrono::seconds>(most_dead_after).count();
  return std::chrono::seconds(environment_number("TUTTI_DEAD_AFTER", usual, most));
}

void check_dead_after(const GroupOptions& o) {
  const auto time = *o.dead_after;
  if (time.count() != 0 && (time < least_dead_after || time > most_dead_after))
    failf(Errc::invalid_argument,
          "group '{}': dead_after is {} s; it must be 0 (never), or from 0.1 s to 24 h", o.name,
          std::chrono::duration<double>(time).count());
}

/// `list`: the members, which decide rank and size; null: the options do.
GroupOptions prepared(const GroupOptions& options, const MemberList* list = nullptr) {
  GroupOptions o = list == nullptr ? options : list->place(options);
  if (o.size < 1)
    failf(Errc::invalid_argument, "group '{}': size is {}; it must be >= 1", o.name, o.size);
  if (o.rank < 0 || o.rank >= o.size)
    failf(Errc::invalid_argument, "group '{}': rank is {}; a group of {} has ranks 0 to {}", o.name,
          o.rank, o.size, o.size - 1);
  if (o.name.empty() || o.name.size() > 200)
    failf(Errc::invalid_argument, "the group's name has {} bytes; it must have 1 to 200",
          o.name.size());
  if (o.timeout <= std::chrono::nanoseconds(0))
    failf(Errc::invalid_argument, "group '{}': timeout is {} ns; it must be positive", o.name,
          o.timeout.count());
  if (o.store == nullptr && o.size > 1)
    failf(Errc::invalid_argument,
          "group '{}': {} ranks need a store to find each other; set GroupOptions::store", o.name,
          o.size);
  o.store = make_prefix_store(o.store == nullptr ? make_memory_store() : o.store, o.name + '/');
  if (list != nullptr) o.store = make_prefix_store(o.store, list->prefix());
  if (!o.logger) {
    check_log_level();
    o.logger = default_logger();
  }
  if (!o.checked) o.checked = environment_switch("TUTTI_CHECK", false);
  if (!o.reproducible) o.reproducible = environment_switch("TUTTI_REPRODUCIBLE", false);
  if (!o.dead_after) o.dead_after = dead_after_of_environment();
  check_dead_after(o);
  return o;
}

BackendInit init_of(const GroupOptions& o) {
  return {.store = o.store,
          .rank = o.rank,
          .size = o.size,
          .name = o.name,
          .device = o.device,
          .memory = o.memory,
          .timeout = o.timeout,
          .logger = o.logger,
          .adopt = o.adopt,
          .checked = *o.checked,
          .dead_after = *o.dead_after};
}

/// This process in words, and behind a line feed a number that no other rank has.
std::string process_of(const GroupOptions& o) {
  static std::atomic<std::uint64_t> count{0};
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host = {'?'};
  return fmt::format("process {} on {}\n{} {}", ::getpid(), host.data(), host_of(o.rank), ++count);
}

std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

/// Before anything else, ranks compare how the group is made with the rank that joined first, and
/// see that no other rank has their number. Without this, ranks that differ would wait for each
/// other until a timeout. An error ends the creation on all ranks, the first one included.
void check_made_alike(const GroupOptions& o, Rendezvous& rendezvous) {
  if (o.size == 1) return;
  const auto process = process_of(o);
  const auto mine =
      fmt::format("size {}, checked mode {}, backend '{}', dead_after {} s and tutti {}", o.size,
                  *o.checked ? "on" : "off", backend_name(o.backend),
                  std::chrono::duration<double>(*o.dead_after).count(), library_version_string());
  const auto who = fmt::format("rank {}, {}", o.rank, first_line(process));
  const auto first =
      to_text(rendezvous.publish_first(made_with, to_bytes(fmt::format("{}\n{}", mine, who))));
  if (first_line(first) != mine)
    throw Error(
        Errc::mismatch,
        fmt::format("group '{}': {} was made with {}; {}, which joined first, with {}; every rank "
                    "has to pass the same size, checked mode (GroupOptions::checked, TUTTI_CHECK), "
                    "backend and dead_after (GroupOptions::dead_after, TUTTI_DEAD_AFTER), and to "
                    "run the same version",
                    o.name, who, mine, first.substr(first.find('\n') + 1), first_line(first)),
        {.group = o.name, .rank = o.rank});
  const auto other =
      to_text(rendezvous.publish_first(fmt::format("member/{}", o.rank), to_bytes(process)));
  if (other != process)
    throw Error(Errc::mismatch,
                fmt::format("group '{}': {} and {} both have rank {}; every rank has a number of "
                            "its own (GroupOptions::rank, TUTTI_RANK)",
                            o.name, first_line(other), first_line(process), o.rank),
                {.group = o.name, .rank = o.rank});
}

std::unique_ptr<Backend> wrap(std::unique_ptr<Backend> backend, const GroupOptions& o) {
  if (backend == nullptr) failf(Errc::invalid_argument, "group '{}': the backend is null", o.name);
  if (o.decorate) backend = o.decorate(std::move(backend));
  if (backend == nullptr)
    failf(Errc::invalid_argument, "group '{}': decorate() returned null", o.name);
  if (*o.checked) backend = make_checked(std::move(backend), o.store, o.name, o.rank, o.size);
  return backend;
}

/// True if the ranks have to agree on a backend through the store.
bool agrees_on_backend(const GroupOptions& o) {
  const bool alone = o.size == 1 && backend_args(o.backend).empty();
  const bool threads = alone || o.store->in_process();
  return is_chosen_together(o.backend, o.device, threads);
}

/// The locations of ranks that may be processes. Collective.
RankLocations exchange_locations(const GroupOptions& o, Rendezvous& rendezvous) {
  const bool agrees = agrees_on_backend(o);
  if (!agrees && (o.size == 1 || o.store->in_process())) {
    RankLocations here;  // Parts of the group need the names of the whole one.
    for (int r = 0; has_named_hosts() && r < o.size; ++r)
      here.push_back(std::make_shared<const RankLocation>(own_location(*o.store, r)));
    return here;
  }
  auto mine = own_location(*o.store, o.rank);
  if (agrees) mine.facts = backend_facts(mine.host, backend_args(o.backend));
  return exchange_locations(rendezvous, mine);
}

/// The reason why ranks of one running kernel, in containers, count as ranks of several hosts, by
/// the first such rank; empty if there is none.
std::string why_apart(const RankLocations& locations) {
  std::map<std::string_view, std::size_t> first;  // Of each kernel.
  for (std::size_t r = 0; r < locations.size(); ++r) {
    const auto& own = *locations[r];
    const auto known = first.emplace(own.identity.boot, r).first->second;
    const auto& other = *locations[known];
    const bool is_named = own.host != text_of(own.identity);
    if (is_named || own.host == other.host || other.host != text_of(other.identity)) continue;
    const auto differs = difference(other.identity, own.identity);
    return fmt::format("; ranks {} and {} run on one kernel, but {}", known, r,
                       differs.empty() ? "the system permits SO_PEERPIDFD to one of them alone"
                                       : "differ in " + differs);
  }
  return {};
}

BackendChoice choose_for(const GroupOptions& o, const RankLocations& locations) {
  if (!agrees_on_backend(o)) return choose_backend(o.backend, o.device, RankPlacement::threads);
  std::vector<std::string> facts;
  for (const auto& location : locations) facts.push_back(location->facts);
  auto choice = choose_together(facts, backend_args(o.backend));
  choice.because += why_apart(locations);
  return choice;
}

std::unique_ptr<Backend> make_backend(const BackendChoice& choice, BackendInit init,
                                      const GroupOptions& o) {
  const auto& entry = *choice.entry;
  if (o.adopt && !entry.adopts)
    failf(Errc::unsupported, "group '{}': backend '{}' cannot adopt a communicator", o.name,
          entry.name);
  init.args = choice.args;
  try {
    return wrap(entry.make(init), o);
  } catch (...) {
    const Error error = to_error(std::current_exception());
    if (!agrees_on_backend(o)) throw Error(error);
    throw Error(error.code(),
                fmt::format("{} (\"auto\" chose the backend {}: {})", error.message(), entry.name,
                            choice.because),
                error.where());
  }
}

/// Members of a list have a new list, or try again, after every failure.
Generation::Failure failure_of(const MemberList* list) noexcept {
  return list == nullptr ? Generation::Failure::each : Generation::Failure::all;
}

/// Ends the creation on the other ranks: this one has run out of memory before it could join. Tries
/// it once, with the memory that there is.
void tell_creation_failed(const GroupOptions& options, const MemberList* list) noexcept {
  try {
    auto o = prepared(options, list);
    Generation generation(o, failure_of(list));
    generation.end(Rendezvous(init_of(o)).give_up(out_of_memory()).code());
  } catch (...) {  // The others wait until their deadline.
  }
}

}  // namespace

ProcessGroup Core::create_over(const GroupOptions& o, RankLocations locations,
                               Membership* membership) {
  auto init = init_of(o);
  Rendezvous rendezvous(init);
  try {
    check_made_alike(o, rendezvous);
    if (membership != nullptr) membership->await_all(rendezvous);
    if (locations.empty()) locations = exchange_locations(o, rendezvous);
    init.locations = locations;
    const auto choice = choose_for(o, locations);
    auto traces = make_traces(o, &rendezvous);
    auto backend = make_backend(choice, init, o);
    return ProcessGroup(std::make_shared<Core>(o, std::move(backend), choice, std::move(locations),
                                               std::move(traces)));
  } catch (...) {
    throw Error(rendezvous.give_up(to_error(std::current_exception())));
  }
}

ProcessGroup Core::create(const GroupOptions& options, const MemberList* list) {
  const auto make = [&] {
    auto o = prepared(options, list);
    Generation generation(o, failure_of(list));
    try {
      std::optional<Membership> membership;
      if (list != nullptr && o.size > 1) membership.emplace(options, *list, generation.number());
      auto group = create_over(o, {}, membership ? &*membership : nullptr);
      generation.end(std::nullopt);
      group.core().log(LogLevel::info, [&] {
        return fmt::format("group '{}': rank {} of {} on {}, because {}", o.name, o.rank, o.size,
                           group.backend(), group.backend_reason());
      });
      return group;
    } catch (const Error& error) {
      generation.end(error.code());
      throw;
    }
  };
  try {
    return make();
  } catch (const std::bad_alloc&) {
    tell_creation_failed(options, list);
    throw Error(out_of_memory());
  }
}

ProcessGroup Core::create(const GroupOptions& options, std::unique_ptr<Backend> backend) {
  return without_bad_alloc([&] { return create_checked(options, std::move(backend)); });
}

ProcessGroup Core::create_checked(const GroupOptions& options, std::unique_ptr<Backend> backend) {
  const auto o = prepared(options);
  if (o.adopt)
    failf(Errc::invalid_argument,
          "group '{}': a Backend object passed to create() cannot adopt a communicator; do not set "
          "GroupOptions::adopt",
          o.name);
  if (o.backend != GroupOptions().backend || o.device != Device())
    failf(Errc::invalid_argument,
          "group '{}': backend is '{}' and device is {}; set neither when passing a Backend "
          "object, which decides both",
          o.name, o.backend, to_string(o.device));
  return ProcessGroup(
      std::make_shared<Core>(o, wrap(std::move(backend), o),
                             BackendChoice{nullptr, {}, "the caller made the Backend object"},
                             RankLocations(), make_traces(o, nullptr)));
}

}  // namespace tutti::internal

namespace tutti {

namespace {

std::vector<ProcessGroup> create_on_threads(std::span<const GroupOptions> options) {
  std::vector<std::optional<ProcessGroup>> made(options.size());
  std::vector<std::exception_ptr> thrown(options.size());
  std::vector<std::thread> threads;
  threads.reserve(options.size());
  std::exception_ptr no_thread;
  for (std::size_t i = 0; i < options.size(); ++i) try {
      threads.emplace_back([&, i] {
        try {
          made[i].emplace(ProcessGroup::create(options[i]));
        } catch (...) {
          thrown[i] = std::current_exception();
        }
      });
    } catch (const std::exception& error) {  // std::system_error or std::bad_alloc.
      // Threads already started end by their timeouts.
      no_thread = std::make_exception_ptr(internal::described(Errc::resource_exhausted, [&] {
        return Error(
            Errc::resource_exhausted,
            std::string("create_all: cannot start a thread for each group: ") + error.what());
      }));
      break;
    }
  for (auto& thread : threads) thread.join();
  if (no_thread) std::rethrow_exception(no_thread);
  // Throws timeouts last: ranks time out because another rank could not join, whose error says
  // more.
  for (const bool waited : {false, true})
    for (const auto& error : thrown)
      if (error && (internal::to_error(error).code() == Errc::timeout) == waited)
        std::rethrow_exception(error);
  std::vector<ProcessGroup> all;
  all.reserve(made.size());
  for (auto& group : made) all.push_back(std::move(*group));
  return all;
}

}  // namespace

std::vector<ProcessGroup> ProcessGroup::create_all(std::span<const GroupOptions> options) {
  return internal::without_bad_alloc([&] { return create_on_threads(options); });
}

}  // namespace tutti
