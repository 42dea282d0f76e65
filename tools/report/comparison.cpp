#include "report/comparison.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/statistics.hpp"
#include "common/text.hpp"

namespace tutti::tool {
namespace {

/// The level of all rows together: in 1 of 100 comparisons of equal programs, any row is called
/// different. The threshold comes on top of it.
constexpr double level = 0.01;

using Settings = std::map<std::string, std::string>;

/// What may explain a difference between runs, other than the code.
Settings settings_of(const SavedRun& run) {
  const World& world = run.world;
  Settings all{{"status", std::string(name_of(run.status))},
               {"tool.version", run.version},
               {"tool.git", run.git},
               {"tool.build", run.build},
               {"backend", run.backend.name},
               {"backend.version", run.backend.version},
               {"backend.transport", run.backend.transport},
               {"ranks", fmt::format("{}", world.size)},
               {"hosts", fmt::format("{}", world.hosts)},
               {"threads", fmt::format("{}", world.threads)},
               {"cpus", fmt::format("{}", world.cpus)},
               {"oversubscribed", fmt::format("{}", world.oversubscribed)}};
  std::set<std::string> hosts;
  std::set<std::string> models;
  std::set<std::string> devices;
  for (const RankInfo& rank : world.ranks) {
    hosts.insert(rank.host);
    models.insert(rank.model);
    devices.insert(rank.device);
  }
  all["host names"] = fmt::format("{}", fmt::join(hosts, " "));
  all["models"] = fmt::format("{}", fmt::join(models, ", "));
  all["devices"] = fmt::format("{}", fmt::join(devices, " "));
  for (const auto& [name, value] : run.config)
    if (name != "samples" && name != "percentiles") all["config." + name] = value;
  for (const auto& [name, value] : run.env) all[name] = value;
  return all;
}

std::vector<Settings> settings_of_all(std::span<const SavedRun> runs) {
  std::vector<Settings> all;
  for (const SavedRun& run : runs) all.push_back(settings_of(run));
  return all;
}

/// The values of a setting in all runs of a side: "1 or 2", "unset".
std::string values_of(const std::vector<Settings>& runs, const std::string& name) {
  std::set<std::string> values;
  for (const Settings& run : runs) {
    const auto at = run.find(name);
    values.insert(at == run.end() || at->second.empty() ? "unset" : at->second);
  }
  return fmt::format("{}", fmt::join(values, " or "));
}

std::vector<std::string> differences_of(std::span<const SavedRun> old_runs,
                                        std::span<const SavedRun> new_runs) {
  const std::vector<Settings> before = settings_of_all(old_runs);
  const std::vector<Settings> after = settings_of_all(new_runs);
  std::set<std::string> names;
  for (const auto& side : {before, after})
    for (const Settings& run : side)
      for (const auto& [name, value] : run) names.insert(name);
  std::vector<std::string> found;
  for (const std::string& name : names) {
    const std::string old_values = values_of(before, name);
    const std::string new_values = values_of(after, name);
    if (old_values != new_values)
      found.push_back(fmt::format("{}: {} -> {}", name, old_values, new_values));
  }
  return found;
}

/// "all_reduce f32 sum 1 KiB, 2 ranks".
std::string describe_row(const SavedRow& row, const std::string& backend) {
  return fmt::format("{}{}{}, {}{}{}", title(row), row.dtype.empty() ? "" : " ",
                     row.dtype.empty() ? "" : size_text(row), plural(row.ranks, "rank"),
                     backend.empty() ? "" : ", ", backend);
}

/// The rows of a side that have the same key: one of each run, or null.
struct SameRows {
  std::string backend{};
  std::vector<const SavedRow*> rows{};

  const SavedRow& first() const {
    return **std::ranges::find_if(rows, [](const SavedRow* row) { return row != nullptr; });
  }
};

struct Side {
  std::vector<std::string> keys{};  ///< In the order of the files.
  std::map<std::string, SameRows> rows{};
};

Side side_of(std::span<const SavedRun> runs, bool with_backend) {
  Side side;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    for (const SavedRow& row : runs[i].rows) {
      const std::string backend = with_backend ? runs[i].backend.name : std::string();
      const std::string key =
          fmt::format("{}|{}|{}|{}|{}|{}|{}|{}|{}|{}", row.coll, row.dtype, row.op, row.place,
                      row.root.value_or(-1), row.layout, fmt::join(row.counts, " "), row.bytes,
                      row.ranks, backend);
      const auto [at, is_new] = side.rows.try_emplace(key);
      SameRows& same = at->second;
      if (is_new) {
        side.keys.push_back(key);
        same.backend = backend;
        same.rows.resize(runs.size());
      }
      if (same.rows[i] == nullptr) same.rows[i] = &row;
    }
  }
  return side;
}

/// The backend is a part of the key if the runs of a side have several. Otherwise two backends can
/// be compared.
bool has_several_backends(std::span<const SavedRun> runs) {
  return std::ranges::any_of(
      runs, [&](const SavedRun& run) { return run.backend.name != runs.front().backend.name; });
}

double p50(const SavedRow& row) {
  return std::max(row.time_us.p50, 1e-3);  // The clock's resolution is a nanosecond.
}

std::vector<double> units_of(const SameRows& same, Unit unit) {
  const SavedRow& first = same.first();
  if (unit == Unit::block) {
    std::vector<double> blocks =
        first.block_p50_us.empty() ? block_medians(first.samples_us) : first.block_p50_us;
    for (double& block : blocks) block = std::max(block, 1e-3);
    if (!blocks.empty()) return blocks;
  }
  std::vector<double> units;
  for (const SavedRow* row : same.rows)
    if (row != nullptr) units.push_back(p50(*row));
  return units;
}

ComparedRow compare_rows(const SameRows& old_rows, const SameRows& new_rows, Unit unit) {
  ComparedRow result{new_rows.first(), new_rows.backend};
  std::vector<double> before;
  std::vector<double> after;
  std::vector<double> ratios;
  if (unit == Unit::round) {
    for (std::size_t i = 0; i < new_rows.rows.size(); ++i) {
      if (old_rows.rows[i] == nullptr || new_rows.rows[i] == nullptr) continue;
      before.push_back(p50(*old_rows.rows[i]));
      after.push_back(p50(*new_rows.rows[i]));
      ratios.push_back(std::log(after.back() / before.back()));
    }
  } else {
    before = units_of(old_rows, unit);
    after = units_of(new_rows, unit);
  }
  result.old_units = std::ssize(before);
  result.new_units = std::ssize(after);
  if (before.empty()) return result;  // Rows of rounds that never met.
  result.old_us = median(before);
  result.new_us = median(after);
  const bool enough = before.size() > 1 && after.size() > 1;
  if (unit == Unit::round) {
    result.ratio = std::exp(median(ratios));
    result.p = signed_rank_p(ratios);
    if (enough)
      result.interval =
          bootstrap([&](Random& random) { return std::exp(median(resampled(ratios, random))); });
  } else {
    result.ratio = result.new_us / result.old_us;
    result.p = rank_sum_p(before, after);
    if (enough)
      result.interval = bootstrap([&](Random& random) {
        return median(resampled(after, random)) / median(resampled(before, random));
      });
  }
  return result;
}

Change change_of(const ComparedRow& row, double threshold) {
  if (!row.interval) return Change::noisy;
  const double least = 1 - threshold;
  const double most = 1 + threshold;
  if (row.p < level && row.ratio >= most && row.interval->low > 1) return Change::slower;
  if (row.p < level && row.ratio <= least && row.interval->high < 1) return Change::faster;
  if (row.interval->low > least && row.interval->high < most) return Change::same;
  return Change::noisy;
}

/// The smallest p of `n` units on each side.
double least_p(Unit unit, std::int64_t n) {
  double p = 2;
  for (std::int64_t i = 1; i <= n; ++i)
    p *= unit == Unit::round ? 0.5 : static_cast<double>(i) / static_cast<double>(n + i);
  return p;
}

void add_notes(Comparison& comparison) {
  const auto rows = static_cast<double>(comparison.rows.size());
  if (comparison.unit == Unit::block) {
    comparison.notes.emplace_back(
        "one run on each side: the intervals do not contain the difference between runs of the "
        "same program; name several files, or use tutti compare --run");
    if (std::ranges::any_of(comparison.rows, [](const ComparedRow& row) { return !row.interval; }))
      comparison.notes.emplace_back(
          "rows without an interval have a single sample, or were saved without block_p50_us");
    return;
  }
  std::int64_t fewest = 0;
  for (const ComparedRow& row : comparison.rows) {
    const std::int64_t units = std::min(row.old_units, row.new_units);
    fewest = fewest == 0 ? units : std::min(fewest, units);
  }
  std::int64_t needed = 1;
  while (least_p(comparison.unit, needed) * rows >= level) ++needed;
  if (fewest < needed)
    comparison.notes.push_back(
        fmt::format("{} with {} on each side: a difference can be significant from {} on",
                    plural(std::ssize(comparison.rows), "row"),
                    plural(fewest, name_of(comparison.unit)), needed));
}

}  // namespace

std::int64_t Comparison::count(Change change) const noexcept {
  return std::ranges::count(rows, change, &ComparedRow::change);
}

Exit exit_of(const Comparison& comparison, bool strict) noexcept {
  if (!comparison.wrong.empty()) return Exit::wrong_data;
  if (comparison.rows.empty() || comparison.count(Change::slower) != 0) return Exit::gate;
  const bool unclear = comparison.count(Change::noisy) != 0 || !comparison.only_old.empty();
  return strict && unclear ? Exit::gate : Exit::ok;
}

Comparison compare(std::span<const SavedRun> old_runs, std::span<const SavedRun> new_runs,
                   double threshold, bool paired) {
  Comparison result;
  result.threshold = threshold;
  result.unit = paired                                         ? Unit::round
                : old_runs.size() == 1 && new_runs.size() == 1 ? Unit::block
                                                               : Unit::run;
  result.differences = differences_of(old_runs, new_runs);
  for (const auto& runs : {old_runs, new_runs})
    for (const SavedRun& run : runs)
      for (const SavedRow& row : run.rows)
        if (row.wrong.value_or(0) != 0)
          result.wrong.push_back(fmt::format("{}: {}: {}", run.file, describe_row(row, {}),
                                             plural(*row.wrong, "wrong element")));

  const bool with_backend = has_several_backends(old_runs) || has_several_backends(new_runs);
  const Side before = side_of(old_runs, with_backend);
  const Side after = side_of(new_runs, with_backend);
  for (const std::string& key : before.keys) {
    const SameRows& old_rows = before.rows.at(key);
    const auto at = after.rows.find(key);
    if (at == after.rows.end())
      result.only_old.push_back(describe_row(old_rows.first(), old_rows.backend));
    else
      result.rows.push_back(compare_rows(old_rows, at->second, result.unit));
  }
  for (const std::string& key : after.keys)
    if (!before.rows.contains(key))
      result.only_new.push_back(
          describe_row(after.rows.at(key).first(), after.rows.at(key).backend));

  std::vector<double> p_values;
  for (const ComparedRow& row : result.rows) p_values.push_back(row.p);
  const std::vector<double> together = adjusted(p_values);
  for (std::size_t i = 0; i < result.rows.size(); ++i) {
    result.rows[i].p = together[i];
    result.rows[i].change = change_of(result.rows[i], threshold);
  }
  if (!result.rows.empty()) add_notes(result);
  return result;
}

}  // namespace tutti::tool
