#include "bench/table.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <tutti/version.hpp>

#include "common/text.hpp"
#include "links/links.hpp"
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

/// Rounds up to 1, 2 or 5 times a power of ten.
double round_up_nicely(double seconds) {
  const double power = std::pow(10, std::floor(std::log10(seconds)));
  for (const double step : {1.0, 2.0, 5.0})
    if (step * power >= seconds) return step * power;
  return 10 * power;
}

std::vector<double> shown_percentiles(const BenchOptions& options) {
  return options.percentiles_given ? options.timing.percentiles : std::vector<double>{50, 99};
}

}  // namespace

std::vector<std::string> bench_columns(const BenchOptions& options) {
  if (options.timing.overlap)
    return {"bytes",
            "overlap.overall_us",
            "overlap.compute_us",
            "overlap.comm_us",
            "overlap.percent",
            "wrong",
            "time_us.n",
            "flags"};
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

Table::Table(std::FILE* out, const BenchOptions& options, const Plan& plan)
    : out_(out),
      options_(options),
      single_sweep_(plan.blocks.size() == 1),
      one_table_(
          !single_sweep_ &&
          std::ranges::all_of(plan.blocks, [](const Block& b) { return b.bytes.size() == 1; })),
      sort_rows_(options.request.order == Order::random) {}

void Table::begin(const BenchRecord& record, const Key& first) {
  const World& world = record.world;
  std::string name;
  if (single_sweep_) {
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

/// The title, unless the first line of the table or each row has it, and the names of the columns.
std::string Table::heading(const Key& key) const {
  Row row;
  row.overlap.emplace();
  if (find_collective(key.coll)->paired()) row.messages_per_s = 0;
  for (const double p : shown_percentiles(options_)) row.percentiles_us[p] = 0;
  const Field field = Fields::object(row);
  std::string text = single_sweep_ || one_table_ ? "" : fmt::format("\n{}\n", title(key));
  std::vector<std::string> columns = bench_columns(options_);
  columns.pop_back();  // The table has marks instead of flags.
  return text + TableRow(field, columns).heading();
}

void Table::begin_sweep(const Key& key) {
  const std::string text = heading(key);
  if (one_table_ && text == std::exchange(last_heading_, text)) return;
  fmt::print(out_, "{}", text);
  std::fflush(out_);
}

void Table::row(const Row& row) {
  if (!sort_rows_) print(row);
}

std::string Table::line_of(const Row& row) const {
  std::vector<std::string> columns = bench_columns(options_);
  columns.pop_back();
  std::string line = TableRow(Fields::object(row), columns).line();
  line.pop_back();
  if (!row.flags.empty()) line += ' ';
  for (const Flag flag : row.flags) line += marks[static_cast<std::size_t>(flag)];
  if (one_table_)
    line +=
        fmt::format("{:{}}{}", "", row.flags.size() < 4 ? 4 - row.flags.size() : 1, title(row.key));
  return line + '\n';
}

void Table::print(const Row& row) {
  fmt::print(out_, "{}", line_of(row));
  if (row.wrong.value_or(0) != 0)
    fmt::print(out_, "          {}\n", describe_wrong(row.wrong, row.first_wrong));
  std::fflush(out_);
}

void Table::end_sweep(std::span<const Row> rows, const std::optional<Fit>& fit) {
  if (sort_rows_) {
    std::vector<Row> sorted(rows.begin(), rows.end());
    std::ranges::stable_sort(sorted, {}, &Row::bytes);
    for (const Row& row : sorted) print(row);
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
      slowest_us =
          std::max(slowest_us, row.time_us.mean * static_cast<double>(row.calls_per_sample));
    }
    const std::string advice =
        options_.timing.iters || options_.timing.overlap || options_.timing.check == Check::all
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
  if (!single_sweep_) fmt::print(out_, "\n");
  print_legend(record);
  if (record.rows.empty()) return;
  fmt::print(out_, "{}{}", links_table(record.links, record.world.size), slow_lines(record.slow));
  if (options_.links && record.world.size == 2)
    fmt::print(out_, "  two ranks have one link, which cannot be compared\n");
  else if (options_.links && record.slow.empty())
    fmt::print(out_, "  no rank and no link is slow\n");
  std::int64_t wrong = 0;
  bool checked = false;
  for (const Row& row : record.rows) {
    wrong += row.wrong.value_or(0);
    checked = checked || row.wrong.has_value();
  }
  const std::string text = checked ? fmt::format("{} wrong element{}", wrong, wrong == 1 ? "" : "s")
                                   : std::string("not checked");
  fmt::print(out_, "  {}      {:.1f} s\n", text, record.duration_s);
  if (const auto busbw = average_busbw(record.rows))
    fmt::print(out_, "  Avg bus bandwidth: {} GB/s\n", format_gbps(busbw));
}

}  // namespace tutti::tool
