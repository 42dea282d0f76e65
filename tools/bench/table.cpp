#include "bench/table.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include <tutti/version.hpp>

#include "common/text.hpp"

namespace tutti::tool {
namespace {

constexpr std::size_t width = 80;
constexpr std::size_t longest_title_before_world = 40;

char mark(Flag flag) {
  switch (flag) {
    case Flag::few_samples:
      return '!';
    case Flag::noisy:
      return '~';
    case Flag::slow_first:
      return '^';
    case Flag::capped_mem:
      break;
  }
  return '*';
}

bool on_cpu(const RankInfo& rank) {
  return rank.device == "cpu";
}

/// Ranks of one process are one item: "0-3 ci-17 pid 812 threads cpu 0-1", or of devices
/// "0-1 ci-17 pid 812 threads cuda:0 cuda:1".
std::vector<std::string> places(const World& world) {
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

/// Items joined by " | ", in lines of at most 80 columns.
std::string wrapped(const std::vector<std::string>& items) {
  std::string text;
  std::size_t column = 0;
  for (const std::string& item : items) {
    const bool fits = column != 0 && column + 3 + item.size() <= width;
    if (!fits && column != 0) {
      text += '\n';
      column = 0;
    }
    const std::string_view before = fits ? " | " : "  ";
    text += before;
    text += item;
    column += before.size() + item.size();
  }
  text += '\n';
  return text;
}

/// Words in lines of at most 80 columns, all but the first indented further.
std::string paragraph(std::string_view words) {
  std::string text;
  std::size_t column = 0;
  while (!words.empty()) {
    const std::size_t space = words.find(' ');
    const std::string_view word = words.substr(0, space);
    words.remove_prefix(space == std::string_view::npos ? words.size() : space + 1);
    std::string_view before = " ";
    if (column == 0) before = "  ";
    if (column + 1 + word.size() > width) {
      before = "\n        ";
      column = before.size() - 1;
    } else {
      column += before.size();
    }
    text += before;
    text += word;
    column += word.size();
  }
  text += '\n';
  return text;
}

/// 1, 2 or 5 times a power of ten, and at least `seconds`.
double round_up_nicely(double seconds) {
  const double power = std::pow(10, std::floor(std::log10(seconds)));
  for (const double step : {1.0, 2.0, 5.0})
    if (step * power >= seconds) return step * power;
  return 10 * power;
}

/// The rank that is slowest against the median rank, over all rows, and by how much.
std::pair<int, double> slowest_rank(const std::vector<Row>& rows) {
  std::vector<double> slowness(rows.front().rank_mean_us.size());
  for (const Row& row : rows) {
    const double middle = median(row.rank_mean_us);
    for (std::size_t r = 0; r < slowness.size(); ++r)
      slowness[r] +=
          (middle > 0 ? row.rank_mean_us[r] / middle : 1) / static_cast<double>(rows.size());
  }
  const auto most = std::max_element(slowness.begin(), slowness.end());
  return {static_cast<int>(most - slowness.begin()), *most - 1};
}

}  // namespace

std::string describe_fit(const Fit& fit) {
  return fmt::format("fit  t = {} µs + S/{:.3g} GB/s   half-bandwidth size {}   (R² {:.3f})",
                     format_us(fit.alpha_us), fit.beta_gbps,
                     format_bytes(std::llround(fit.n_half_bytes)), fit.r2);
}

std::string_view check_word(const Row& row) {
  return !row.wrong ? "-" : *row.wrong == 0 ? "ok" : "BAD";
}

Table::Table(std::FILE* out, TableOptions options) : out_(out), options_(std::move(options)) {}

void Table::begin(const BenchRecord& record, const Key& first) {
  const World& world = record.world;
  std::string name;
  if (options_.single_block) {
    name = title(first);
    name += name.size() > longest_title_before_world ? "\n  " : "  ";
  }
  fmt::print(out_, "tutti bench {}  {}{}\n", library_version_string(), name,
             describe_world(record));
  fmt::print(out_, "{}", wrapped(places(world)));
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
  rows_.clear();
  if (!options_.single_block) fmt::print(out_, "\n{}\n", title(key));
  fmt::print(out_, "{:>10}", "size");
  for (const double p : options_.percentiles)
    fmt::print(out_, "{:>11}", fmt::format("p{:g} µs", p));
  fmt::print(out_, "{:>11}{:>8}{:>8}{:>5}{:>7}\n", "max µs", "algbw", "busbw", "chk", "iters");
  std::fflush(out_);
}

void Table::row(const Row& row) {
  rows_.push_back(row);
  if (!options_.sort_rows) print_row(row);
}

void Table::print_row(const Row& row) {
  fmt::print(out_, "{:>10}", row.algbw ? format_bytes(row.bytes) : "-");
  for (const double p : options_.percentiles)
    fmt::print(out_, "{:>11}", format_us(row.percentiles_us.at(p)));
  fmt::print(out_, "{:>11}{:>8}{:>8}{:>5}{:>7}", format_us(row.time_us.max), format_gbps(row.algbw),
             format_gbps(row.busbw), check_word(row), row.time_us.n);
  if (!row.flags.empty()) fmt::print(out_, " ");
  for (const Flag flag : row.flags) fmt::print(out_, "{}", mark(flag));
  fmt::print(out_, "\n");
  if (row.wrong.value_or(0) != 0) fmt::print(out_, "          {}\n", describe_wrong(row));
  std::fflush(out_);
}

void Table::end_block(const std::optional<Fit>& fit) {
  std::sort(rows_.begin(), rows_.end(),
            [](const Row& a, const Row& b) { return a.bytes < b.bytes; });
  if (options_.sort_rows)
    for (const Row& row : rows_) print_row(row);
  if (fit) fmt::print(out_, "  {}\n", describe_fit(*fit));
}

void Table::print_legend(const BenchRecord& record) {
  std::int64_t fewest = 0;
  double slowest_us = 0;
  bool few = false, noisy = false, slow_first = false, capped = false;
  for (const Row& row : record.rows) {
    if (row.has(Flag::few_samples)) {
      fewest = few ? std::min(fewest, row.time_us.n) : row.time_us.n;
      slowest_us = std::max(slowest_us, row.time_us.mean);
      few = true;
    }
    noisy = noisy || row.has(Flag::noisy);
    slow_first = slow_first || row.has(Flag::slow_first);
    capped = capped || row.has(Flag::capped_mem);
  }
  if (few) {
    const std::string advice =
        options_.fixed_iterations
            ? std::string("--iters 100")
            : fmt::format("--min-time {:g}s", round_up_nicely(slowest_us * 1e-6 * 100));
    fmt::print(out_, "  !  {} sample{}: p99 is the maximum; use {} for a real p99\n", fewest,
               fewest == 1 ? "" : "s", advice);
  }
  if (noisy)
    fmt::print(out_, "  ~  noisy: over 1% of the samples lie 14.8 MADs or more from the median\n");
  if (slow_first) fmt::print(out_, "  ^  slow first iteration: use more --warmup\n");
  if (capped) fmt::print(out_, "  *  --cold had too little memory to leave the cache\n");
}

void Table::end(const BenchRecord& record) {
  if (!options_.single_block) fmt::print(out_, "\n");
  print_legend(record);
  if (record.rows.empty()) return;
  std::string text;
  if (record.world.size > 1) {
    const auto [rank, excess] = slowest_rank(record.rows);
    text = fmt::format("slowest rank: {} ({:+.0f}% vs median rank)      ", rank, excess * 100);
  }
  std::int64_t wrong = 0;
  bool checked = false;
  for (const Row& row : record.rows) {
    wrong += row.wrong.value_or(0);
    checked = checked || row.wrong.has_value();
  }
  text += checked ? fmt::format("{} wrong element{}", wrong, wrong == 1 ? "" : "s")
                  : std::string("not checked");
  fmt::print(out_, "  {}      {:.1f} s\n", text, record.duration_s);
}

}  // namespace tutti::tool
