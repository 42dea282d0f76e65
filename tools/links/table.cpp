#include "links/table.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/statistics.hpp"
#include "common/text.hpp"
#include "report/table.hpp"

namespace tutti::tool {
namespace {

constexpr std::size_t most_slow_lines = 8;
constexpr int widest_matrix = 16;

double latency(const LinkRow& row) {
  return row.latency_us.p50();
}
double bandwidth(const LinkRow& row) {
  return row.bandwidth();
}
std::string gbps(double value) {
  return format_gbps(value);
}

/// "0.41 to 0.52, median 0.44", and a matrix of all ranks: the row sends, the column receives.
std::string matrix(const std::vector<LinkRow>& rows, int ranks, double (*value)(const LinkRow&),
                   std::string (*shown)(double)) {
  std::vector<double> values;
  for (const LinkRow& row : rows) values.push_back(value(row));
  const auto [least, most] = std::ranges::minmax(values);
  std::string text =
      fmt::format("{} to {}, median {}\n", shown(least), shown(most), shown(median(values)));
  if (ranks > widest_matrix) return text;
  text += "      ";
  for (int rank = 0; rank < ranks; ++rank) text += fmt::format("{:>9}", rank);
  auto next = values.begin();
  for (int from = 0; from < ranks; ++from) {
    text += fmt::format("\n{:>6}", from);
    for (int to = 0; to < ranks; ++to)
      text += fmt::format("{:>9}", from == to ? "-" : shown(*next++));
  }
  return text + "\n";
}

}  // namespace

double LinkRow::bandwidth() const {
  return static_cast<double>(bandwidth_bytes) / message_us.p50() * 1e-3;
}

void describe(Fields& fields, const LinkRow& row) {
  fields("from", row.from, "rank", {.at_least = 0});
  fields("to", row.to, "rank", {.at_least = 0});
  fields("between_hosts", row.between_hosts);
  fields("latency_us", row.latency_us, "half of a round trip of 8 bytes");
  fields("message_us", row.message_us, "a message of 262144 bytes, four in flight");
  fields("bandwidth_gbps", row.bandwidth(), "GB/s: 262144 bytes / message_us.p50");
}

std::vector<LinkRow> link_rows(const std::vector<Link>& links) {
  std::vector<LinkRow> rows;
  for (const Link& link : links) {
    rows.push_back({link.a, link.b, link.between_hosts, link.latency_us, link.there_us});
    rows.push_back({link.b, link.a, link.between_hosts, link.latency_us, link.back_us});
  }
  std::ranges::sort(rows, {}, [](const LinkRow& row) { return std::pair(row.from, row.to); });
  return rows;
}

std::string links_table(const std::vector<Link>& links, int ranks) {
  const std::vector<LinkRow> rows = link_rows(links);
  if (rows.empty()) return {};
  return fmt::format(
      "\n  latency in µs, half of a round trip of {}: {}"
      "\n  bandwidth in GB/s, {} x {} in flight: {}\n",
      format_bytes(latency_bytes), matrix(rows, ranks, latency, format_us), bandwidth_window,
      format_bytes(bandwidth_bytes), matrix(rows, ranks, bandwidth, gbps));
}

std::string slow_lines(const std::vector<Slow>& slow) {
  std::string text;
  for (std::size_t i = 0; i < std::min(slow.size(), most_slow_lines); ++i)
    text += paragraph(to_string(slow[i]));
  if (slow.size() > most_slow_lines)
    text += fmt::format("  and {} more, which the JSON has\n", slow.size() - most_slow_lines);
  return text;
}

}  // namespace tutti::tool
