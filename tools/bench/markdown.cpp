#include "bench/markdown.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <tutti/version.hpp>

#include "bench/table.hpp"
#include "common/text.hpp"

namespace tutti::tool {
namespace {

std::string line(const std::vector<std::string>& cells) {
  return fmt::format("| {} |\n", fmt::join(cells, " | "));
}

std::string header(const std::vector<double>& percentiles) {
  std::vector<std::string> names{"size"};
  for (const double p : percentiles) names.push_back(fmt::format("p{:g} µs", p));
  for (const char* name : {"max µs", "algbw GB/s", "busbw GB/s", "check", "iterations", "flags"})
    names.emplace_back(name);
  std::vector<std::string> rules(names.size(), "---:");
  rules.back() = "---";
  return line(names) + line(rules);
}

std::string cells(const Row& row, const std::vector<double>& percentiles) {
  std::vector<std::string> cells{row.algbw ? format_bytes(row.bytes) : "-"};
  for (const double p : percentiles) cells.push_back(format_us(row.percentiles_us.at(p)));
  cells.push_back(format_us(row.time_us.max));
  cells.push_back(format_gbps(row.algbw));
  cells.push_back(format_gbps(row.busbw));
  cells.emplace_back(check_word(row));
  cells.push_back(fmt::format("{}", row.time_us.n));
  std::vector<std::string_view> flags;
  for (const Flag flag : row.flags) flags.push_back(name_of(flag));
  cells.push_back(fmt::format("{}", fmt::join(flags, " ")));
  return line(cells);
}

}  // namespace

std::string to_markdown(const BenchRecord& record, const std::vector<double>& percentiles) {
  std::string text =
      fmt::format("# tutti bench {}: {}\n", library_version_string(), describe_world(record));
  if (record.status != Status::ok) text += fmt::format("\n**{}**", name_of(record.status));
  if (!record.error.empty()) text += fmt::format(": {}", record.error);
  if (record.status != Status::ok) text += "\n";
  if (!record.notes.empty()) text += "\n";
  for (const std::string& note : record.notes) text += fmt::format("* {}\n", note);

  std::vector<Row> rows = record.rows;
  for (auto first = rows.begin(); first != rows.end();) {
    const Key& key = first->key;
    const auto last =
        std::find_if(first, rows.end(), [&](const Row& row) { return row.key != key; });
    std::sort(first, last, [](const Row& a, const Row& b) { return a.bytes < b.bytes; });
    text += fmt::format("\n## {}\n\n{}", title(key), header(percentiles));
    for (auto row = first; row != last; ++row) text += cells(*row, percentiles);
    for (const KeyedFit& fit : record.fits)
      if (fit.key == key) text += fmt::format("\n{}\n", describe_fit(fit.fit));
    first = last;
  }
  return text;
}

}  // namespace tutti::tool
