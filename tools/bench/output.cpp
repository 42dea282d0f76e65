#include "bench/output.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <tutti/version.hpp>

#include "common/duration.hpp"
#include "common/text.hpp"
#include "pairs/output.hpp"
#include "report/table.hpp"

namespace tutti::tool {
namespace {

constexpr std::size_t longest_title_before_world = 40;

/// The mark of each Flag, in their order.
constexpr std::string_view marks = "!~^*";

bool on_cpu(const RankInfo& rank) {
  return rank.device == "cpu";
}

/// Lists the ranks of one process as one item: "0-3 ci-17 pid 812 threads cpu 0-1", or with devices
/// "0-1 ci-17 pid 812 threads cuda:0 cuda:1".
std::vector<std::string> host_texts(const World& world) {
  std::vector<std::string> items;
  for (std::size_t i = 0; i < world.ranks.size();) {
    const RankInfo& first = world.ranks[i];
    std::vector<int> ranks;
    std::string devices;
    for (; i < world.ranks.size() && world.ranks[i].host == first.host &&
           world.ranks[i].pid == first.pid;
         ++i) {
      ranks.push_back(world.ranks[i].rank);
      devices += " " + world.ranks[i].device;
    }
    if (on_cpu(first)) devices = " cpu " + first.cpuset;
    items.push_back(fmt::format("{} {} pid {}{}{}", format_ranges(ranks), first.host, first.pid,
                                ranks.size() > 1 ? " threads" : "", devices));
  }
  return items;
}

std::vector<double> shown_percentiles(const BenchOptions& options) {
  return options.percentiles_given ? options.timing.percentiles : std::vector<double>{50, 99};
}

/// Rounds up to 1, 2 or 5 times a power of ten.
double round_up_nicely(double seconds) {
  const double power = std::pow(10, std::floor(std::log10(seconds)));
  for (const double step : {1.0, 2.0, 5.0})
    if (step * power >= seconds) return step * power;
  return 10 * power;
}

/// The columns of a table of rows in Markdown; the last one has the flags.
std::vector<std::string> bench_columns(const BenchOptions& options) {
  std::vector<std::string> columns{"bytes"};
  for (const double p : shown_percentiles(options))
    columns.push_back(fmt::format("time_us.p{:g}", p));
  for (const char* column :
       {"time_us.max", "algbw", "busbw", "messages_per_s", "wrong", "time_us.n", "flags"})
    columns.emplace_back(column);
  return columns;
}

std::string describe_fit(const Fit& fit) {
  return fmt::format("fit  t = {} µs + S/{:.3g} GB/s   half-bandwidth size {}   (R² {:.3f})",
                     format_us(fit.alpha_us), fit.beta_gbps,
                     format_bytes(std::llround(fit.n_half_bytes)), fit.r2);
}

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
}

Field describe_run(const BenchRecord& record, const BenchOptions& options) {
  return Fields::object([&](Fields& fields) {
    describe(fields, static_cast<const RunRecord&>(record));
    fields("config", [&](Fields& config) { describe(config, options); });
    fields("results", record.rows);
    fields("fit", record.fits);
    fields("slow", record.slow, "ranks and links that are slower than the others");
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

Table::Table(std::FILE* out, const BenchOptions& options, bool single_block)
    : out_(out),
      options_(options),
      columns_(bench_columns(options)),
      single_block_(single_block),
      sort_rows_(options.request.order == Order::random) {
  columns_.pop_back();  // The table has marks instead of flags.
}

void Table::begin(const BenchRecord& record, const Key& first) {
  const World& world = record.world;
  std::string name;
  if (single_block_) {
    name = title(first);
    name += name.size() > longest_title_before_world ? "\n  " : "  ";
  }
  fmt::print(out_, "tutti bench {}  {}{}\n", library_version_string(), name,
             describe_world(record));
  fmt::print(out_, "{}", wrapped(host_texts(world), " | ", "  "));
  const bool on_host = std::ranges::all_of(world.ranks, on_cpu);
  if (world.size == 1)
    fmt::print(out_, "  note: one rank: no link is crossed, so busbw is n/a\n");
  else if (world.hosts == 1 && on_host)
    fmt::print(out_,
               "  note: all ranks share {} CPU{}; numbers measure this machine, not a network\n",
               world.cpus, world.cpus == 1 ? "" : "s");
  if (!on_host)
    fmt::print(out_,
               "  note: arrays on devices: a sample is the mean of calls queued back to back\n");
  for (const std::string& note : record.notes) fmt::print(out_, "{}", paragraph("note: " + note));
  fmt::print(out_, "  bandwidth from the mean time over ranks, in GB/s; 1 GB/s = 1e9 B/s\n");
}

void Table::begin_block(const Key& key) {
  if (!single_block_) fmt::print(out_, "\n{}\n", title(key));
  Row row;
  for (const double p : shown_percentiles(options_)) row.percentiles_us[p] = 0;
  if (find_collective(key.coll)->paired()) row.messages_per_s = 0;
  fmt::print(out_, "{}", TableRow(Fields::object(row), columns_).heading());
  std::fflush(out_);
}

void Table::row(const Row& row) {
  if (!sort_rows_) print_row(row);
}

void Table::print_row(const Row& row) {
  std::string line = TableRow(Fields::object(row), columns_).line();
  if (!row.flags.empty()) line.back() = ' ';
  for (const Flag flag : row.flags) line += marks[static_cast<std::size_t>(flag)];
  if (!row.flags.empty()) line += '\n';
  fmt::print(out_, "{}", line);
  if (row.wrong.value_or(0) != 0) fmt::print(out_, "          {}\n", describe_wrong(row));
  std::fflush(out_);
}

void Table::end_block(std::span<const Row> rows, const std::optional<Fit>& fit) {
  if (sort_rows_) {
    std::vector<Row> sorted(rows.begin(), rows.end());
    std::ranges::sort(sorted, {}, &Row::bytes);
    for (const Row& row : sorted) print_row(row);
  }
  if (fit) fmt::print(out_, "  {}\n", describe_fit(*fit));
}

void Table::print_legend(const BenchRecord& record) {
  const auto any = [&](Flag flag) {
    return std::ranges::any_of(record.rows, [flag](const Row& row) { return row.has(flag); });
  };
  if (any(Flag::few_samples)) {
    std::int64_t fewest = std::numeric_limits<std::int64_t>::max();
    double slowest_us = 0;
    for (const Row& row : record.rows) {
      if (!row.has(Flag::few_samples)) continue;
      fewest = std::min(fewest, row.time_us.n);
      slowest_us = std::max(slowest_us, row.time_us.mean);
    }
    const std::string advice =
        options_.timing.iters
            ? std::string("--iters 100")
            : fmt::format("--min-time {:g}s", round_up_nicely(slowest_us * 1e-6 * 100));
    fmt::print(out_, "  !  {}: p99 is the maximum; use {} for a real p99\n",
               plural(fewest, "sample"), advice);
  }
  if (any(Flag::noisy))
    fmt::print(out_, "  ~  noisy: over 1% of the samples lie 14.8 MADs or more from the median\n");
  if (any(Flag::slow_first)) fmt::print(out_, "  ^  slow first iteration: use more --warmup\n");
  if (any(Flag::capped_mem))
    fmt::print(out_, "  *  --cold had too little memory to leave the cache\n");
}

void Table::end(const BenchRecord& record) {
  if (!single_block_) fmt::print(out_, "\n");
  print_legend(record);
  if (record.rows.empty()) return;
  fmt::print(out_, "{}", slow_lines(record.slow));
  std::int64_t wrong = 0;
  bool checked = false;
  for (const Row& row : record.rows) {
    wrong += row.wrong.value_or(0);
    checked = checked || row.wrong.has_value();
  }
  const std::string text = checked ? fmt::format("{} wrong element{}", wrong, wrong == 1 ? "" : "s")
                                   : std::string("not checked");
  fmt::print(out_, "  {}      {:.1f} s\n", text, record.duration_s);
}

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
