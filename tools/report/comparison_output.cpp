#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <tutti/version.hpp>

#include "common/text.hpp"
#include "report/comparison.hpp"
#include "report/json.hpp"
#include "report/table.hpp"

namespace tutti::tool {
namespace {

/// "+10.6", "+344".
std::string percent(double ratio) {
  return fmt::format("{:+.{}f}", (ratio - 1) * 100, ratio < 2 ? 1 : 0);
}

std::string interval_text(const std::optional<Interval>& interval) {
  if (!interval) return "none";
  return fmt::format("[{}, {}]", percent(interval->low), percent(interval->high));
}

/// "all_reduce f32 sum  2 ranks".
std::string call_of(const ComparedRow& row) {
  return fmt::format("{}  {}{}{}", title(row.row), plural(row.row.ranks, "rank"),
                     row.backend.empty() ? "" : "  ", row.backend);
}

std::string change_text(Change change) {
  return change == Change::slower ? "SLOWER" : std::string(name_of(change));
}

/// Everything but the rows, one item a line, each with this mark before it.
std::vector<std::string> remarks(const Comparison& comparison) {
  std::vector<std::string> lines;
  for (const std::string& each : comparison.wrong) lines.push_back("wrong data: " + each);
  for (const std::string& each : comparison.differences) lines.push_back("differs: " + each);
  for (const std::string& each : comparison.only_old) lines.push_back("only in OLD: " + each);
  for (const std::string& each : comparison.only_new) lines.push_back("only in NEW: " + each);
  for (const std::string& each : comparison.notes) lines.push_back("note: " + each);
  return lines;
}

}  // namespace

void describe(Fields& fields, const Interval& interval) {
  fields("low", interval.low);
  fields("high", interval.high);
}

void describe(Fields& fields, const ComparedRow& compared) {
  const SavedRow& row = compared.row;
  fields("call", call_of(compared), {.column = {"call", -1, call_of(compared)}});
  fields("coll", row.coll);
  fields("dtype", unless_empty(row.dtype));
  fields("op", unless_empty(row.op));
  fields("place", unless_empty(row.place));
  fields("root", row.root);
  fields("layout", unless_empty(row.layout));
  fields("counts", unless_empty(row.counts));
  fields("bytes", row.bytes, {.at_least = 0, .column = {"size", 10, size_text(row)}});
  fields("ranks", row.ranks, {.at_least = 1});
  fields("backend", unless_empty(compared.backend), "null unless a side has several");
  fields("old_p50_us", compared.old_us, "median over the units",
         {.column = {"old µs", 12, format_us(compared.old_us)}});
  fields("new_p50_us", compared.new_us, {.column = {"new µs", 12, format_us(compared.new_us)}});
  fields("old_units", compared.old_units, {.at_least = 0});
  fields("new_units", compared.new_units, {.at_least = 0});
  fields("ratio", compared.ratio, "new / old",
         {.column = {"change", 10, percent(compared.ratio) + "%"}});
  fields("interval", compared.interval, "of the ratio, 95 %; null with too few units",
         {.column = {"95% interval", 18, interval_text(compared.interval)}});
  fields("p", compared.p, "adjusted for the number of rows", {.at_least = 0});
  fields("result", compared.change, {.column = {"result", 9, change_text(compared.change)}});
}

void describe(Fields& fields, const Comparison& comparison) {
  fields("schema_version", 1, {.constant = true});
  fields("old", comparison.old_name, "files or command");
  fields("new", comparison.new_name);
  fields("threshold", comparison.threshold, {.above = 0});
  fields("unit", comparison.unit, "of resampling and ranks");
  fields("differences", comparison.differences, "of settings");
  fields("only_old", comparison.only_old);
  fields("only_new", comparison.only_new);
  fields("wrong", comparison.wrong);
  fields("notes", comparison.notes);
  fields("results", comparison.rows);
}

std::string comparison_schema() {
  return json_schema("tutti/compare-run-1", "A comparison of tutti compare",
                     Fields::object(Comparison()));
}

std::string comparison_summary(const Comparison& comparison) {
  if (comparison.rows.empty()) return "no row is on both sides";
  const double percent = comparison.threshold * 100;
  std::string units;
  if (comparison.unit == Unit::round)
    units = fmt::format(" over {}", plural(comparison.rows.front().new_units, "round"));
  return fmt::format(
      "{} of {} slower by {:g}% or more (p < 0.01){}; {} faster, {} the same, {} too noisy to tell",
      comparison.count(Change::slower), plural(std::ssize(comparison.rows), "row"), percent, units,
      comparison.count(Change::faster), comparison.count(Change::same),
      comparison.count(Change::noisy));
}

std::string comparison_table(const Comparison& comparison) {
  std::string text =
      fmt::format("tutti compare {}\n  old: {}\n  new: {}\n", library_version_string(),
                  comparison.old_name, comparison.new_name);
  for (const std::string& line : remarks(comparison)) text += paragraph("! " + line);
  std::string call;
  for (const ComparedRow& row : comparison.rows) {
    const TableRow line(Fields::object(row),
                        {"bytes", "old_p50_us", "new_p50_us", "ratio", "interval", "result"});
    if (call_of(row) != call) {
      call = call_of(row);
      text += fmt::format("\n{}\n{}", call, line.heading());
    }
    text += line.line();
  }
  return text + fmt::format("\n{}\n", comparison_summary(comparison));
}

std::string comparison_markdown(const Comparison& comparison) {
  std::string text =
      fmt::format("### {}\n\n* old: `{}`\n* new: `{}`\n", comparison_summary(comparison),
                  comparison.old_name, comparison.new_name);
  for (const std::string& line : remarks(comparison)) text += fmt::format("* {}\n", line);
  bool first = true;
  for (const ComparedRow& row : comparison.rows) {
    const TableRow line(Fields::object(row), {"call", "bytes", "old_p50_us", "new_p50_us", "ratio",
                                              "interval", "result"});
    if (std::exchange(first, false)) text += "\n" + line.markdown_heading();
    text += line.markdown_line();
  }
  return text;
}

}  // namespace tutti::tool
