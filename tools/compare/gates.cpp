#include "compare/gates.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "bench/sizes.hpp"
#include "common/duration.hpp"
#include "common/exit_code.hpp"
#include "common/text.hpp"

namespace tutti::tool {
namespace {

constexpr std::string_view blanks = " \t";

enum class Relation : std::uint8_t { at_least, at_most, equal, above, below };
constexpr std::array<std::string_view, 5> relations{">=", "<=", "==", ">", "<"};

/// Removes the relation at the beginning of `text`; empty if there is none.
std::optional<Relation> take_relation(std::string_view& text) {
  for (std::size_t i = 0; i < relations.size(); ++i) {
    if (!text.starts_with(relations[i])) continue;
    text.remove_prefix(relations[i].size());
    return static_cast<Relation>(i);
  }
  return std::nullopt;
}

bool holds(double value, Relation relation, double bound) {
  switch (relation) {
    case Relation::at_least:
      return value >= bound;
    case Relation::at_most:
      return value <= bound;
    case Relation::equal:
      return value == bound;
    case Relation::above:
      return value > bound;
    case Relation::below:
      break;
  }
  return value < bound;
}

enum class Kind : std::uint8_t { time, bandwidth, count };

struct Metric {
  std::string name{};
  Kind kind = Kind::time;
  std::function<std::optional<double>(const SavedRow&)> of{};
};

Metric metric_named(const std::string& name, std::string_view rule) {
  if (name == "algbw")
    return {name, Kind::bandwidth, [](const SavedRow& row) { return row.algbw; }};
  if (name == "busbw")
    return {name, Kind::bandwidth, [](const SavedRow& row) { return row.busbw; }};
  if (name == "wrong")
    return {name, Kind::count, [](const SavedRow& row) {
              return row.wrong ? std::optional(static_cast<double>(*row.wrong)) : std::nullopt;
            }};
  if (name == "n")
    return {name, Kind::count,
            [](const SavedRow& row) { return static_cast<double>(row.time_us.n); }};
  constexpr std::array<std::pair<std::string_view, double Summary::*>, 4> times{
      {{"mean", &Summary::mean},
       {"min", &Summary::min},
       {"max", &Summary::max},
       {"stdev", &Summary::stdev}}};
  for (const auto& time : times)
    if (name == time.first)
      return {name, Kind::time,
              [member = time.second](const SavedRow& row) { return row.time_us.*member; }};
  if (!name.starts_with('p'))
    refuse(
        "rule '{}': unknown metric '{}'; expected p50 or another percentile, mean, min, max, "
        "stdev, n, algbw, busbw or wrong",
        rule, name);
  const double percent =
      parse_number(fmt::format("rule '{}': percentile", rule), name.substr(1),
                   "above 0 and at most 100", [](double p) { return p > 0 && p <= 100; });
  return {name, Kind::time, [percent](const SavedRow& row) -> std::optional<double> {
            const auto at = row.percentiles_us.find(percent);
            if (at == row.percentiles_us.end()) return std::nullopt;
            return at->second;
          }};
}

/// The bound of a rule, in the unit of its metric: microseconds, GB/s or a number.
double bound_of(const Metric& metric, std::string_view text, std::string_view rule) {
  const std::string what = fmt::format("rule '{}': value", rule);
  const std::size_t digits = text.find_last_of("0123456789.") + 1;
  std::string_view unit = text.substr(digits);
  unit.remove_prefix(std::min(unit.find_first_not_of(blanks), unit.size()));
  if (unit == "µs") unit = "us";
  if (metric.kind == Kind::time && !unit.empty())
    return seconds(parse_duration(what, fmt::format("{}{}", text.substr(0, digits), unit))) * 1e6;
  if (metric.kind == Kind::bandwidth && unit == "GB/s") text = text.substr(0, digits);
  constexpr std::array<std::string_view, 3> expected{"of microseconds, or a time such as 60us",
                                                     "of GB/s", "of at least 0"};
  return parse_number(what, text, expected[static_cast<std::size_t>(metric.kind)],
                      [](double) { return true; });
}

std::string with_unit(double value, Kind kind) {
  constexpr std::array<std::string_view, 3> units{" µs", " GB/s", ""};
  return fmt::format("{:.4g}{}", value, units[static_cast<std::size_t>(kind)]);
}

using Selects = std::function<bool(const SavedRun&, const SavedRow&)>;

Selects selection(std::string_view word, std::string_view rule) {
  if (word == "*") return [](const SavedRun&, const SavedRow&) { return true; };
  std::string_view size = word;
  const std::optional<Relation> relation = take_relation(size);
  if (!relation && std::isdigit(static_cast<unsigned char>(word.front())) == 0)
    return [name = std::string(word)](const SavedRun& run, const SavedRow& row) {
      const std::array<std::string_view, 6> names{row.coll,  row.dtype,  row.op,
                                                  row.place, row.layout, run.backend.name};
      return std::ranges::find(names, name) != names.end();
    };
  const std::vector<Size> sizes = size.empty() ? std::vector<Size>() : parse_sizes(size);
  if (sizes.size() != 1 || sizes.front().ranged || sizes.front().elements)
    refuse("rule '{}': '{}': expected one size in bytes, such as >=64M", rule, word);
  return [relation = relation.value_or(Relation::equal),
          bytes = static_cast<double>(sizes.front().value)](const SavedRun&, const SavedRow& row) {
    return !row.dtype.empty() && holds(static_cast<double>(row.bytes), relation, bytes);
  };
}

struct Rule {
  std::vector<Selects> words{};
  Metric metric{};
  Relation relation = Relation::equal;
  double bound = 0;

  bool selects(const SavedRun& run, const SavedRow& row) const {
    if (row.dtype.empty() && (metric.kind == Kind::bandwidth || metric.name == "wrong"))
      return false;
    return std::ranges::all_of(words, [&](const Selects& word) { return word(run, row); });
  }
};

Rule parse_rule(std::string_view text) {
  const auto bad = [text]() {
    refuse(
        "rule '{}': expected ROWS : METRIC OP VALUE, such as 'all_reduce f32 >=64M : busbw >= "
        "180'; OP is one of: {}",
        text, fmt::join(relations, " "));
  };
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) bad();
  Rule rule;
  std::istringstream words{std::string(text.substr(0, colon))};
  for (std::string word; words >> word;) rule.words.push_back(selection(word, text));
  std::string_view rest = text.substr(colon + 1);
  rest = rest.substr(0, rest.find_last_not_of(blanks) + 1);
  const auto skip_spaces = [&rest]() {
    rest.remove_prefix(std::min(rest.find_first_not_of(blanks), rest.size()));
  };
  skip_spaces();
  const std::string name(rest.substr(0, rest.find_first_of(" \t<>=")));
  rest.remove_prefix(name.size());
  skip_spaces();
  const std::optional<Relation> relation = take_relation(rest);
  skip_spaces();
  if (rule.words.empty() || name.empty() || !relation || rest.empty()) bad();
  rule.metric = metric_named(name, text);
  rule.relation = *relation;
  rule.bound = bound_of(rule.metric, rest, text);
  return rule;
}

}  // namespace

Gate check_rule(std::string_view text, std::span<const SavedRun> runs) {
  const Rule rule = parse_rule(text);
  Gate gate{std::string(text)};
  std::int64_t matched = 0;
  std::int64_t failed = 0;
  std::optional<double> worst;
  std::string where;
  for (const SavedRun& run : runs) {
    for (const SavedRow& row : run.rows) {
      if (!rule.selects(run, row)) continue;
      ++matched;
      const std::optional<double> value = rule.metric.of(row);
      const bool fails = !value || !holds(*value, rule.relation, rule.bound);
      const bool lower_is_worse =
          rule.relation == Relation::at_least || rule.relation == Relation::above;
      const bool is_worse = matched == 1 || (fails && failed == 0) ||
                            (fails == (failed != 0) && value && worst &&
                             (lower_is_worse ? *value < *worst : *value > *worst));
      if (fails) ++failed;
      if (!is_worse) continue;
      worst = value;
      where = fmt::format("{} {}, {}", title(row), size_text(row), plural(row.ranks, "rank"));
    }
  }
  gate.pass = matched != 0 && failed == 0;
  if (matched == 0) {
    gate.found = "no row matches";
  } else {
    const std::string value =
        worst ? with_unit(*worst, rule.metric.kind) : fmt::format("no {}", rule.metric.name);
    gate.found = fmt::format("{}{}, worst {}: {}",
                             failed == 0 ? std::string() : fmt::format("{} of ", failed),
                             plural(matched, "row"), value, where);
  }
  return gate;
}

}  // namespace tutti::tool
