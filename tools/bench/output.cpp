#include "bench/bench.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include <tutti/version.hpp>

#include "bench/table.hpp"
#include "common/duration.hpp"
#include "report/table.hpp"

namespace tutti::tool {
namespace {

/// Fields of the run in every row of CSV and NDJSON.
constexpr std::array<std::string_view, 9> shared{"started",     "status",       "tool.version",
                                                 "tool.git",    "backend.name", "backend.transport",
                                                 "world.hosts", "config.mode",  "config.rank_agg"};

void describe(Fields& fields, const BenchOptions& options) {
  const Timing& timing = options.timing;
  const Request& request = options.request;
  std::vector<std::string> counts;
  for (const Counts& each : request.counts.values) counts.push_back(each.name());
  fields("units", "GB=1e9,time=us", {.constant = true});
  fields("mode", timing.mode);
  fields("min_time_s", seconds(timing.min_time));
  fields("iters", timing.iters, {.at_least = 1, .instead = "auto"});
  fields("warmup", timing.warmup, {.at_least = 0, .instead = "auto"});
  fields("max_total_s", seconds(options.max_total));
  fields("timeout_s", seconds(options.timeout));
  fields("counts", counts, "as --counts has them");
  fields("order", request.order);
  fields("cold", options.cold);
  fields("rank_agg", timing.rank_agg);
  fields("percentiles", timing.percentiles);
  fields("check", timing.check);
  fields("seed", timing.seed, {.at_least = 0});
  fields("samples", timing.samples);
  fields("aggregate", timing.aggregate, "calls in one Coalesce", {.at_least = 1});
  fields("overlap", timing.overlap);
  fields("links", options.links);
}

Field describe_run(const BenchRecord& record, const BenchOptions& options) {
  return Fields::object([&](Fields& fields) {
    describe(fields, static_cast<const RunRecord&>(record));
    fields("config", [&](Fields& config) { describe(config, options); });
    fields("results", record.rows);
    fields("fit", record.fits);
    fields("links", unless_empty(record.links), "in both directions; with --links",
           {.omitted = true});
    fields("slow", record.slow, "ranks and links that are slower than the others");
    fields("avg_busbw", average_busbw(record.rows), "GB/s, of all rows that have a busbw");
  });
}

/// One table per sweep.
std::string markdown(const BenchRecord& record, const BenchOptions& options) {
  std::string text = markdown_head(fmt::format("tutti bench {}", library_version_string()), record);
  const std::vector<std::string> columns = bench_columns(options);
  std::vector<Row> rows = record.rows;
  for (auto first = rows.begin(); first != rows.end();) {
    const Key& key = first->key;
    const auto last =
        std::find_if(first, rows.end(), [&](const Row& row) { return row.key != key; });
    std::sort(first, last, [](const Row& a, const Row& b) { return a.bytes < b.bytes; });
    const auto table_row = [&](const Row& row) { return TableRow(Fields::object(row), columns); };
    text += fmt::format("\n## {}\n\n{}", title(key), table_row(*first).markdown_heading());
    for (auto row = first; row != last; ++row) text += table_row(*row).markdown_line();
    for (const KeyedFit& fit : record.fits)
      if (fit.key == key) text += fmt::format("\n{}\n", describe_fit(fit.fit));
    first = last;
  }
  return text;
}

}  // namespace

Report bench_report(const BenchRecord& record, const BenchOptions& options) {
  return {[&] { return describe_run(record, options); },
          shared,
          {},
          [&] { return markdown(record, options); }};
}

std::string bench_schema() {
  return json_schema("tutti/bench-run-1", "A run of tutti bench", describe_run({}, {}));
}

}  // namespace tutti::tool
