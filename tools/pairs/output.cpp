#include "pairs/output.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

#include <tutti/version.hpp>

#include "common/duration.hpp"
#include "common/text.hpp"
#include "report/figures.hpp"
#include "report/json.hpp"
#include "report/table.hpp"

namespace tutti::tool {

/// A link in one direction.
struct PairRow {
  int from = 0;
  int to = 1;
  bool between_hosts = false;
  Times latency_us{};
  Times message_us{};

  double latency() const { return latency_us.p50(); }
  double bandwidth() const {
    return static_cast<double>(bandwidth_bytes) / message_us.p50() * 1e-3;
  }
};

void describe(Fields& fields, const PairRow& row) {
  const auto rank = [](std::string_view heading, int value) {
    return About{.at_least = 0, .column = {std::string(heading), 6, fmt::format("{}", value)}};
  };
  fields("from", row.from, "rank", rank("from", row.from));
  fields("to", row.to, "rank", rank("to", row.to));
  fields("between_hosts", row.between_hosts);
  fields("latency_us", row.latency_us, "half of a round trip of 8 bytes",
         {.column = {"latency µs", 12, format_us(row.latency())}});
  fields("message_us", row.message_us, "a message of 262144 bytes, four in flight");
  fields("bandwidth_gbps", row.bandwidth(), "GB/s: 262144 bytes / message_us.p50",
         {.column = {"GB/s", 9, format_gbps(row.bandwidth())}});
}

namespace {

constexpr std::size_t most_slow_lines = 8;
constexpr int widest_matrix = 16;

/// Fields of the run in every row of CSV and NDJSON.
constexpr std::array<std::string_view, 7> pairs_shared{
    "started",           "status",    "tool.version", "tool.git", "backend.name",
    "backend.transport", "world.size"};

const std::vector<std::string> pair_columns{"from", "to", "latency_us", "bandwidth_gbps"};

/// The links in both directions, by sender.
std::vector<PairRow> pair_rows(const PairsRecord& record) {
  std::vector<PairRow> rows;
  for (const Link& link : record.measured.links) {
    rows.push_back({link.a, link.b, link.between_hosts, link.latency_us, link.there_us});
    rows.push_back({link.b, link.a, link.between_hosts, link.latency_us, link.back_us});
  }
  std::ranges::sort(rows, {}, [](const PairRow& row) { return std::pair(row.from, row.to); });
  return rows;
}

Field describe_run(const PairsRecord& record, const PairsOptions& options) {
  return Fields::object([&](Fields& fields) {
    describe(fields, static_cast<const RunRecord&>(record));
    fields("config", [&](Fields& config) {
      config("passes", options.timing.passes, {.at_least = 1});
      config("min_time_s", seconds(options.timing.each));
      config("at_once", options.timing.at_once, "all pairs of a round at the same time");
      config("timeout_s", seconds(options.timeout));
    });
    fields("results", pair_rows(record), "every link, in both directions");
    fields("slow", record.measured.slow, "ranks and links that are slower than the others");
  });
}

/// A matrix of all ranks: the row sends, the column receives.
template <typename Cell>
std::string rank_matrix(const std::vector<PairRow>& rows, int ranks, const Cell& cell) {
  std::string text = "      ";
  for (int rank = 0; rank < ranks; ++rank) text += fmt::format("{:>9}", rank);
  auto row = rows.begin();
  for (int from = 0; from < ranks; ++from) {
    text += fmt::format("\n{:>6}", from);
    for (int to = 0; to < ranks; ++to)
      text += fmt::format("{:>9}", from == to ? "-" : cell(*row++));
  }
  return text + "\n";
}

/// "0.41 to 0.52, median 0.44".
template <typename Value, typename Text>
std::string spread_of(const std::vector<PairRow>& rows, const Value& value, const Text& text) {
  std::vector<double> values;
  for (const PairRow& row : rows) values.push_back(value(row));
  std::ranges::sort(values);
  return fmt::format("{} to {}, median {}", text(values.front()), text(values.back()),
                     text(median(values)));
}

/// Latencies on the left, bandwidths on the right; the darker, the slower than the median.
HeatMap pairs_map(const PairsRecord& record) {
  const std::vector<PairRow> rows = pair_rows(record);
  HeatMap map{.title = fmt::format("tutti pairs: {}", describe_world(record)),
              .row_name = "from rank",
              .column_name = "latency in µs (left) and bandwidth in GB/s (right) to rank"};
  if (!record.measured.slow.empty()) map.note = to_string(record.measured.slow.front());
  if (const auto more = record.measured.slow.size(); more > 1)
    map.note += fmt::format("; and {} more", more - 1);
  if (map.note.empty()) map.note = "no rank and no link is slow";
  std::vector<double> latencies;
  std::vector<double> messages;
  for (const PairRow& row : rows) {
    latencies.push_back(row.latency_us.p50());
    messages.push_back(row.message_us.p50());
  }
  const double usual_latency = rows.empty() ? 0 : median(latencies);
  const double usual_message = rows.empty() ? 0 : median(messages);
  const auto darkness = [](double us, double usual) { return std::log2(us / usual) / 4; };
  auto row = rows.begin();
  for (int from = 0; from < record.world.size; ++from) {
    const std::string name = fmt::format("{}", from);
    map.rows.push_back(name);
    map.columns.push_back(name);
    std::vector<HeatCell>& cells = map.cells.emplace_back();
    std::vector<HeatCell> right{{}};
    for (int to = 0; to < record.world.size; ++to) {
      if (from == to || row == rows.end()) {
        cells.emplace_back();
        right.emplace_back();
        continue;
      }
      const std::string tip =
          fmt::format("{} to {}: {} µs, {} GB/s", from, to, format_us(row->latency_us.p50()),
                      format_gbps(row->bandwidth()));
      cells.push_back(
          {format_us(row->latency_us.p50()), darkness(row->latency_us.p50(), usual_latency), tip});
      right.push_back(
          {format_gbps(row->bandwidth()), darkness(row->message_us.p50(), usual_message), tip});
      ++row;
    }
    cells.insert(cells.end(), right.begin(), right.end());
  }
  const std::vector<std::string> ranks = map.columns;
  map.columns.emplace_back();
  map.columns.insert(map.columns.end(), ranks.begin(), ranks.end());
  return map;
}

std::string pairs_table(const PairsRecord& record, const PairsOptions& options) {
  const std::vector<PairRow> rows = pair_rows(record);
  if (rows.empty() || record.status != Status::ok) return {};
  const auto latency = [](const PairRow& row) { return row.latency(); };
  const auto bandwidth = [](const PairRow& row) { return row.bandwidth(); };
  const auto gbps = [](double value) { return format_gbps(value); };
  const bool small = record.world.size <= widest_matrix;
  std::string text =
      fmt::format("tutti pairs {}  {}\n", library_version_string(), describe_world(record));
  for (const std::string& note : record.notes) text += paragraph("note: " + note);
  text += fmt::format("\n  latency in µs, half of a round trip of {}: {}\n",
                      format_bytes(latency_bytes), spread_of(rows, latency, format_us));
  if (small)
    text += rank_matrix(rows, record.world.size,
                        [&](const PairRow& row) { return format_us(latency(row)); });
  text += fmt::format("\n  bandwidth in GB/s, {} x {} in flight: {}\n", bandwidth_window,
                      format_bytes(bandwidth_bytes), spread_of(rows, bandwidth, gbps));
  if (small)
    text += rank_matrix(rows, record.world.size,
                        [&](const PairRow& row) { return gbps(bandwidth(row)); });
  text += "\n" + slow_lines(record.measured.slow);
  if (record.world.size == 2)
    text += "  two ranks have one link, which cannot be compared\n";
  else if (record.measured.slow.empty())
    text += "  no rank and no link is slow\n";
  return text + fmt::format("  medians of {}      {:.1f} s\n",
                            plural(options.timing.passes, "pass", "passes"), record.duration_s);
}

std::string markdown(const PairsRecord& record) {
  std::string text = markdown_head(fmt::format("tutti pairs {}", library_version_string()), record);
  const std::vector<PairRow> rows = pair_rows(record);
  for (const Slow& slow : record.measured.slow) text += fmt::format("\n{}\n", to_string(slow));
  for (const PairRow& row : rows) {
    const TableRow line(Fields::object(row), pair_columns);
    if (&row == &rows.front()) text += "\n" + line.markdown_heading();
    text += line.markdown_line();
  }
  return text;
}

}  // namespace

std::string describe_plan(const LinkTiming& timing) {
  return fmt::format("{} passes of {} ns{}", timing.passes, timing.each.count(),
                     timing.at_once ? " at once" : "");
}

std::string slow_lines(const std::vector<Slow>& slow) {
  std::string text;
  for (std::size_t i = 0; i < std::min(slow.size(), most_slow_lines); ++i)
    text += paragraph(to_string(slow[i]));
  if (slow.size() > most_slow_lines)
    text += fmt::format("  and {} more, which the JSON has\n", slow.size() - most_slow_lines);
  return text;
}

Report pairs_report(const PairsRecord& record, const PairsOptions& options) {
  return {[&] { return describe_run(record, options); }, pairs_shared,
          [&] { return pairs_table(record, options); }, [&] { return markdown(record); },
          [&] { return draw(pairs_map(record)).file(); }};
}

std::string pairs_schema() {
  return json_schema("tutti/pairs-run-1", "A run of tutti pairs", describe_run({}, {}));
}

}  // namespace tutti::tool
