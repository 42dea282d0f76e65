#pragma once

#include <string>
#include <vector>

#include "links/links.hpp"

namespace tutti::tool {

/// A link in one direction.
struct LinkRow {
  int from = 0;
  int to = 1;
  bool between_hosts = false;
  Times latency_us{};
  Times message_us{};

  double bandwidth() const;  ///< GB/s.
};
void describe(Fields& fields, const LinkRow& row);

/// The links in both directions, by sender.
std::vector<LinkRow> link_rows(const std::vector<Link>& links);

/// Latencies and bandwidths of all links; of up to 16 ranks as matrices.
std::string links_table(const std::vector<Link>& links, int ranks);

/// A line for each slow rank and link, at most eight and the number of the rest.
std::string slow_lines(const std::vector<Slow>& slow);

}  // namespace tutti::tool
