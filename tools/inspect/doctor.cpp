#include "inspect/inspect.hpp"

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <tutti/cluster.hpp>
#include <tutti/error.hpp>
#include <tutti/init.hpp>

#include "common/duration.hpp"
#include "common/text.hpp"
#include "inspect/checkup.hpp"
#include "report/json.hpp"
#include "report/output.hpp"
#include "run/ranks.hpp"

namespace tutti::tool {

void describe(Fields& fields, const CheckResult& check) {
  fields("level", check.level);
  fields("area", check.area);
  fields("text", check.text);
  fields("remedy", unless_empty(check.remedy));
  fields("ranks", unless_empty(check.ranks));
}

namespace {

using namespace std::chrono_literals;
using enum Level;

/// The last time at which the ranks wait for each other is later than the group's timeout.
constexpr auto end_timeout = 10s;

std::size_t count(const std::vector<CheckResult>& checks, Level level) {
  return static_cast<std::size_t>(std::ranges::count(checks, level, &CheckResult::level));
}

Exit print_report(const std::vector<CheckResult>& checks, int ranks, const DoctorOptions& options) {
  if (options.json) {
    fmt::print("{}", to_json(Fields::object([&](Fields& fields) {
                 fields("ranks", ranks);
                 fields("problems", count(checks, problem));
                 fields("warnings", count(checks, warning));
                 fields("checks", checks);
               })));
  } else {
    for (const CheckResult& check : checks) {
      const bool one = check.ranks.find_first_of(",-") == std::string::npos;
      const auto who = check.ranks.empty() || check.area == "ranks"
                           ? std::string()
                           : fmt::format("rank{} {}: ", one ? "" : "s", check.ranks);
      fmt::print("{:<8} {:<10} {}{}\n", name_of(check.level), check.area, who, check.text);
      if (!check.remedy.empty()) fmt::print("{:<19} -> {}\n", "", check.remedy);
    }
    const auto problems = static_cast<std::int64_t>(count(checks, problem));
    const auto warnings = static_cast<std::int64_t>(count(checks, warning));
    fmt::print("{}: {}, {}\n", plural(ranks, "process", "processes"), plural(problems, "problem"),
               plural(warnings, "warning"));
  }
  flush(stdout);
  return count(checks, problem) == 0 ? Exit::ok : Exit::found;
}

/// The exchanges of the ranks of a launcher, through the store alone until the last step.
class Ranks {
 public:
  Ranks(ClusterInfo info, std::shared_ptr<Store> base, const DoctorOptions& options)
      : info_(std::move(info)),
        base_(std::move(base)),
        store_(make_prefix_store(base_, "doctor/")),
        options_(options) {}

  Exit run(const Checkup& mine) {
    publish("checkup", mine);
    if (info_.rank == 0) return lead();
    const auto go_on = Deadline::after(options_.timeout + end_timeout);
    if (store_->get_text("all", go_on) == "here") {
      Checkup later{.pid = mine.pid};
      try_group(later);
      publish("later", later);
    }
    // Rank 0 may wait for the checkups, the group and the reports.
    const auto end = Deadline::after(3 * options_.timeout + end_timeout);
    return from_message<Exit>(store_->get_text("status", end));
  }

 private:
  template <typename T>
  void publish(std::string_view what, const T& value) {
    store_->set(fmt::format("{}/{}", what, info_.rank), to_message(value));
  }
  template <typename T>
  T get(std::string_view what, int rank, const Deadline& deadline) {
    return from_message<T>(store_->get_text(fmt::format("{}/{}", what, rank), deadline));
  }

  /// The checkups of all ranks; fills `missing` with ranks that sent none.
  std::vector<Checkup> collect(std::string_view what, std::vector<int>& missing,
                               const Deadline& deadline) {
    std::vector<Checkup> all(static_cast<std::size_t>(info_.size));
    for (int rank = 0; rank < info_.size; ++rank) try {
        all[static_cast<std::size_t>(rank)] = get<Checkup>(what, rank, deadline);
      } catch (const Error& error) {
        if (error.code() != Errc::timeout) throw;
        missing.push_back(rank);
      }
    return all;
  }

  Exit lead() {
    std::vector<int> missing;
    auto all = collect("checkup", missing, Deadline::after(options_.timeout));
    store_->set("all", missing.empty() ? "here" : "missing");
    std::vector<CheckResult> checks;
    if (missing.empty()) {
      checks = compare(all);
      Checkup own{.pid = all.front().pid};
      try_group(own);
      publish("later", own);
      const auto later = collect("later", missing, Deadline::after(options_.timeout + end_timeout));
      for (CheckResult& check : compare(later)) checks.push_back(std::move(check));
    } else {
      checks = compare(all);  // What the others say may be the reason.
    }
    if (!missing.empty())
      checks.push_back(
          {problem, "ranks",
           fmt::format("no report of rank{} {} within {}", missing.size() == 1 ? "" : "s",
                       format_ranges(missing), format_duration(options_.timeout)),
           "Look at what they print: they may not reach the store, or have ended",
           format_ranges(missing)});
    const auto status = print_report(checks, info_.size, options_);
    store_->set("status", to_message(status));
    return status;
  }

  void try_group(Checkup& later) {
    const GroupOptions group{.backend = options_.backend,
                             .store = base_,
                             .rank = info_.rank,
                             .size = info_.size,
                             .timeout = options_.timeout};
    std::string text;
    const auto outcome = run_rank(group, {}, [&](Rank& rank) {
      text = fmt::format("{} over {}: {}", plural(info_.size, "rank"), rank.group.backend(),
                         rank.group.backend_reason());
      std::vector<float> x(10'000, 1.0F);
      rank.group.all_reduce(x);
    });
    if (outcome.failed)
      later.add(problem, "group", outcome.failed->text, "Correct what the text names");
    else
      later.add(ok, "group", "all_reduce of " + text);
  }

  const ClusterInfo info_;
  const std::shared_ptr<Store> base_;
  const std::shared_ptr<Store> store_;
  const DoctorOptions options_;
};

}  // namespace

Exit run_doctor(const DoctorOptions& options) {
  // A parent may have left SIG_IGN, with which the kernel keeps no status of a child.
  (void)std::signal(SIGCHLD, SIG_DFL);
  std::optional<ClusterInfo> info;
  std::string failure;
  try {
    info = VariablesEnvironment().detect();
  } catch (const Error& error) {
    failure = error.message();
  }
  Checkup mine = check_machine(info ? info->size : 1);
  if (!failure.empty()) {
    mine.add(problem, "launcher", failure, "Correct or unset these variables");
  } else if (info && info->size > 1) {
    try {
      auto store = open_cluster_store(*info, options.timeout);
      mine.add(ok, "launcher",
               fmt::format("{} started {} ranks; their store: {}", info->launcher, info->size,
                           info->store.empty() ? "published through it" : info->store));
      return Ranks(*info, std::move(store), options).run(mine);
    } catch (const Error& error) {
      mine.add(problem, "store",
               fmt::format("rank {} of {}: {}", info->rank, info->size, error.message()),
               "Correct what the text names; every rank needs the same store");
    }
  } else {
    mine.add(ok, "launcher",
             info ? fmt::format("{} started one rank", info->launcher)
                  : std::string("none; ranks of a launcher are compared: tutti run "
                                "-n 2 tutti doctor"));
    try_backends(mine);
  }
  return print_report(mine.checks, 1, options);
}

}  // namespace tutti::tool
