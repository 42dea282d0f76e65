#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "report/fields.hpp"

namespace tutti::tool {

/// The time of a message between two ranks.
struct LinkTime {
  int a = 0;
  int b = 0;
  bool between_hosts = false;
  double us = 0;
};

/// A rank or a link that is slower than the others.
struct Slow {
  std::vector<std::int64_t> ranks{};  ///< One: all its links are slow. Two: the link between them.
  std::int64_t bytes = 0;             ///< Of the message.
  double us = 0;                      ///< Of a slow rank: of its fastest link.
  double others_us = 0;               ///< Median of the links that it is compared with.
  bool between_hosts = false;         ///< The kind of these links.

  bool involves(int a, int b) const;
};
void describe(Fields& fields, const Slow& slow);
/// "slow link 0-1: 256 KiB take 20900.1 µs, 410.2 µs on other links".
std::string to_string(const Slow& slow);

/// The slow ranks and links. Links on one host and links between hosts are compared with their own
/// kind only. A time is slow if it is above the median of the others by a factor (2 between hosts,
/// 3 on a host, twice that beside fewer than three others) and by five of their standard deviations
/// (by the median absolute deviation). A rank is slow if all its links are, at least two, compared
/// with the links without it; a link is compared with at least two others. Of two ranks,
/// which have one link, none is named.
std::vector<Slow> find_slow(std::span<const LinkTime> times, std::int64_t bytes);

}  // namespace tutti::tool
