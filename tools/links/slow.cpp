#include "links/slow.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/statistics.hpp"
#include "common/text.hpp"

namespace tutti::tool {
namespace {

constexpr double slow_between_hosts = 2;
constexpr double slow_on_host = 3;  // Caches and the scheduler make twice the time.
constexpr std::size_t few_others = 3;
constexpr double slow_deviations = 5;
/// The standard deviation of a normal distribution by its median absolute deviation.
constexpr double deviation_by_mad = 1.4826;

using LinkTimes = std::vector<LinkTime>;

/// The median of `others`, unless `us` is not slow compared with them.
std::optional<double> slow_beside(double us, const LinkTimes& others) {
  const double factor = (others.front().between_hosts ? slow_between_hosts : slow_on_host) *
                        (others.size() < few_others ? 2 : 1);

  std::vector<double> values;
  for (const LinkTime& other : others) values.push_back(other.us);
  const double middle = median(values);
  for (double& value : values) value = std::abs(value - middle);
  const double spread = deviation_by_mad * median(values);
  if (us <= std::max(factor * middle, middle + slow_deviations * spread)) return std::nullopt;
  return middle;
}

LinkTimes without(const LinkTimes& links, const Slow& slow) {
  LinkTimes rest;
  for (const LinkTime& link : links)
    if (!slow.involves(link.a, link.b)) rest.push_back(link);
  return rest;
}

/// The rank whose fastest link is the slowest.
Slow slowest_rank(const LinkTimes& links) {
  struct Own {
    int links = 0;
    double least = std::numeric_limits<double>::infinity();
  };
  std::map<int, Own> ranks;
  for (const LinkTime& link : links) {
    for (const int rank : {link.a, link.b}) {
      Own& own = ranks[rank];
      ++own.links;
      own.least = std::min(own.least, link.us);
    }
  }
  Slow slowest;
  for (const auto& [rank, own] : ranks)
    if (own.links >= 2 && own.least > slowest.us) slowest = {{rank}, 0, own.least, 0, false};
  return slowest;
}

Slow slowest_link(const LinkTimes& links) {
  const auto slowest = std::ranges::max_element(links, {}, &LinkTime::us);
  return {{slowest->a, slowest->b}, 0, slowest->us, 0, false};
}

/// Moves the slow ones that `slowest` finds, the slowest first, from `links` to `found`.
template <typename Slowest>
void take_slow(LinkTimes& links, std::size_t fewest_others, std::int64_t bytes, Slowest slowest,
               std::vector<Slow>& found) {
  while (!links.empty()) {
    Slow candidate = slowest(links);
    LinkTimes others = without(links, candidate);
    if (candidate.ranks.empty() || others.size() < fewest_others) return;
    const std::optional<double> others_us = slow_beside(candidate.us, others);
    if (!others_us) return;
    candidate.bytes = bytes;
    candidate.others_us = *others_us;
    candidate.between_hosts = others.front().between_hosts;
    found.push_back(candidate);
    links = std::move(others);
  }
}

}  // namespace

bool Slow::involves(int a, int b) const {
  const auto is = [this](int rank) { return std::ranges::count(ranks, rank) != 0; };
  return ranks.size() == 1 ? is(a) || is(b) : is(a) && is(b);
}

void describe(Fields& fields, const Slow& slow) {
  fields("ranks", slow.ranks, "one: all its links are slow; two: the link between them",
         {.at_least = 0});
  fields("bytes", slow.bytes, "of the message", {.at_least = 1});
  fields("us", slow.us, "of a message; of a slow rank, on its fastest link");
  fields("others_us", slow.others_us, "median of the links that it is compared with");
  fields("between_hosts", slow.between_hosts, "whether these links are between hosts");
}

std::string to_string(const Slow& slow) {
  const bool rank = slow.ranks.size() == 1;
  return fmt::format(
      "slow {} {}: {} take {} µs, {} µs {}", rank ? "rank" : "link", fmt::join(slow.ranks, "-"),
      format_bytes(slow.bytes), format_us(slow.us), format_us(slow.others_us),
      slow.between_hosts ? (rank ? "between other hosts" : "on other links between hosts")
      : rank             ? "between other ranks"
                         : "on other links");
}

std::vector<Slow> find_slow(std::span<const LinkTime> times, std::int64_t bytes) {
  std::vector<Slow> found;
  for (const bool between_hosts : {false, true}) {
    LinkTimes links;
    for (const LinkTime& link : times)
      if (link.between_hosts == between_hosts) links.push_back(link);
    take_slow(links, 1, bytes, slowest_rank, found);
    take_slow(links, 2, bytes, slowest_link, found);
  }
  return found;
}

}  // namespace tutti::tool
