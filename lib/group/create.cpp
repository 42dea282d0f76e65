#include "group/create.hpp"

#include <algorithm>
#include <exception>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "backend/agreement.hpp"
#include "backend/backend_choice.hpp"
#include "group/checked.hpp"
#include "group/core.hpp"
#include "store/checks.hpp"
#include "values/current_error.hpp"
#include "values/environment_switch.hpp"
#include "values/fail.hpp"
#include "values/group_errors.hpp"
#include "values/host_identity.hpp"

namespace tutti::internal {
namespace {

GroupOptions prepared(const GroupOptions& options) {
  GroupOptions o = options;
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
  if (!o.logger) o.logger = default_logger();
  if (!o.checked) o.checked = environment_switch("TUTTI_CHECK", false);
  return o;
}

constexpr std::string_view made_with = "made_with";

/// One try to make the group. The keys of a failed try would mislead the ranks of the next one, so
/// every try after a failed one has its own prefix.
class Try {
 public:
  explicit Try(GroupOptions& o) : store_(o.store) {
    if (o.size == 1) return;
    if (const auto failed = store_->try_get(key)) failed_ = *failed;
    const auto number = to_text(failed_);
    if (!number.empty()) o.store = make_prefix_store(store_, fmt::format("try/{}/", number));
  }
  /// Ends a try that failed on this rank: ranks that join from now on make the next try. Only the
  /// first rank that fails in a try increases the number.
  void end(int size) noexcept {
    try {
      const auto next = failed_.empty() ? 1 : std::stoi(to_text(failed_)) + 1;
      if (size > 1) store_->compare_set(key, failed_, to_bytes(std::to_string(next)));
    } catch (...) {  // The store failed too.
    }
  }

 private:
  static constexpr std::string_view key = "failed_tries";
  std::shared_ptr<Store> store_;
  Bytes failed_{};
};

/// Compares the size, the checked mode and the backend's name with those of the rank that joined
/// first, which publishes them. Without this, ranks that differ would wait for each other until a
/// timeout.
void check_made_alike(const GroupOptions& o) {
  if (o.size == 1) return;
  const auto mine = fmt::format("size {}, checked mode {} and backend '{}'", o.size,
                                *o.checked ? "on" : "off", backend_name(o.backend));
  const auto first = to_text(o.store->compare_set(made_with, {}, to_bytes(mine)));
  if (first != mine)
    throw Error(
        Errc::mismatch,
        fmt::format("group '{}': rank {} was made with {}, the rank that joined first with {}; "
                    "every rank has to pass the same size, checked mode (GroupOptions::checked, "
                    "TUTTI_CHECK) and backend",
                    o.name, o.rank, mine, first),
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

}  // namespace

BackendChoice choose_for(const GroupOptions& o) {
  if (!agrees_on_backend(o)) return choose_backend(o.backend, o.device, RankPlacement::threads);
  const auto facts = exchange_texts(*o.store, o.name, o.rank, o.size,
                                    backend_facts(host_of(o.rank), backend_args(o.backend)),
                                    Deadline::after(o.timeout));
  return choose_together(facts, backend_args(o.backend));
}

std::unique_ptr<Backend> make_backend(const BackendChoice& choice, const GroupOptions& o) {
  const auto& entry = *choice.entry;
  if (o.adopt && !entry.adopts)
    failf(Errc::unsupported, "group '{}': backend '{}' cannot adopt a communicator", o.name,
          entry.name);
  return wrap(entry.make({.store = o.store,
                          .rank = o.rank,
                          .size = o.size,
                          .name = o.name,
                          .args = choice.args,
                          .device = o.device,
                          .memory = o.memory,
                          .timeout = o.timeout,
                          .logger = o.logger,
                          .adopt = o.adopt,
                          .checked = *o.checked}),
              o);
}

ProcessGroup Core::create(const GroupOptions& options) {
  auto o = prepared(options);
  const bool agrees = agrees_on_backend(o);
  BackendChoice choice;
  if (!agrees) choice = choose_for(o);  // An error here is no failed try.
  Try attempt(o);
  check_made_alike(o);
  std::unique_ptr<Backend> backend;
  try {
    if (agrees) choice = choose_for(o);
    backend = make_backend(choice, o);
  } catch (...) {
    const Error error = to_error(std::current_exception());
    // After an error that would not break a group the other ranks still wait in this try, and this
    // rank may join them.
    if (breaks_group(error.code())) attempt.end(o.size);
    if (!agrees || choice.entry == nullptr) throw;
    throw Error(error.code(),
                fmt::format("{} (\"auto\" chose the backend {}: {})", error.message(),
                            choice.entry->name, choice.because),
                error.where());
  }
  // All ranks have joined, so the name may be reused.
  if (o.rank == 0 && o.size > 1) o.store->erase(made_with);
  o.logger(LogLevel::info, fmt::format("group '{}': rank {} of {} on {}, because {}", o.name,
                                       o.rank, o.size, choice.entry->name, choice.because));
  return ProcessGroup(std::make_shared<Core>(o, std::move(backend), choice));
}

ProcessGroup Core::create(const GroupOptions& options, std::unique_ptr<Backend> backend) {
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
                             BackendChoice{nullptr, {}, "the caller made the Backend object"}));
}

}  // namespace tutti::internal

namespace tutti {

std::vector<ProcessGroup> ProcessGroup::create_all(std::span<const GroupOptions> options) {
  std::vector<std::optional<ProcessGroup>> made(options.size());
  std::vector<std::exception_ptr> thrown(options.size());
  std::vector<std::thread> threads;
  threads.reserve(options.size());
  std::exception_ptr no_thread;
  for (std::size_t i = 0; i < options.size(); ++i) try {
      threads.emplace_back([&, i] {
        try {
          made[i].emplace(create(options[i]));
        } catch (...) {
          thrown[i] = std::current_exception();
        }
      });
    } catch (const std::system_error& error) {
      // Threads already started end by their timeouts.
      no_thread = std::make_exception_ptr(
          Error(Errc::resource_exhausted,
                std::string("create_all: cannot start a thread for each group: ") + error.what()));
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

}  // namespace tutti
