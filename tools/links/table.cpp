#include "links/links.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "common/statistics.hpp"
#include "common/text.hpp"
#include "report/table.hpp"

namespace tutti::tool {
namespace {

constexpr std::size_t most_slow_lines = 8;
constexpr int widest_matrix = 16;

double latency(const Link& link) {
  return link.latency_us.p50();
}
double bandwidth(const Link& link) {
  return link.bandwidth();
}
std::string gbps(double value) {
  return format_gbps(value);
}

/// "0.41 to 0.52, median 0.44", and a matrix of all ranks: the row sends, the column receives.
std::string matrix(const std::vector<Link>& links, int ranks, double (*value)(const Link&),
                   std::string (*shown)(double)) {
  std::vector<double> values;
  for (const Link& link : links) values.push_back(value(link));
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

std::string links_table(const std::vector<Link>& links, int ranks) {
  if (links.empty()) return {};
  return fmt::format(
      "\n  latency in µs, half of a round trip of {}: {}"
      "\n  bandwidth in GB/s, {} x {} in flight: {}\n",
      format_bytes(latency_bytes), matrix(links, ranks, latency, format_us), bandwidth_window,
      format_bytes(bandwidth_bytes), matrix(links, ranks, bandwidth, gbps));
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
