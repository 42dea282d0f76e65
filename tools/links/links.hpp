#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <tutti/process_group.hpp>

#include "links/slow.hpp"
#include "report/record.hpp"
#include "run/control.hpp"

namespace tutti::tool {

inline constexpr std::int64_t latency_bytes = 8;
inline constexpr std::int64_t bandwidth_bytes = 256 * 1024;
inline constexpr int bandwidth_window = 4;  ///< Messages in flight; an answer follows them.

/// The samples of one measurement, in microseconds.
struct Times {
  std::vector<double> medians{};  ///< Of each pass.
  double least = 0;               ///< Of all samples.

  double p50() const;  ///< Median of the medians; 0 without samples.
};
void describe(Fields& fields, const Times& times);

/// The times from one rank to another.
struct Link {
  int from = 0;
  int to = 0;
  bool between_hosts = false;
  Times latency_us{};  ///< Half of a round trip of latency_bytes, the same in both directions.
  Times message_us{};  ///< A message of bandwidth_bytes.

  double bandwidth() const;  ///< GB/s.
};
void describe(Fields& fields, const Link& link);

struct LinkTiming {
  int passes = 3;  ///< Over all pairs; each has a median of every link.
  std::chrono::nanoseconds each = std::chrono::milliseconds(5);  ///< Of a measurement in a pass.
  /// On rank 0: no pass begins after this time, and then nothing is named.
  std::chrono::nanoseconds budget = std::chrono::nanoseconds::max();
};

struct Links {
  std::vector<Link> links{};  ///< In both directions, by sender.
  std::vector<Slow>
      slow{};  ///< By the median and the least of the medians, and by the least sample.
};

/// Measures the links between all ranks over the arrays of the host. Links that look slow are
/// measured up to four times more, one at a time and later each time, before they are named.
/// Collective; the result is complete on rank 0. `world` has the hosts on rank 0. @throws Failure
/// wrong_data.
Links measure_links(ProcessGroup& group, Control& control, const World& world,
                    const LinkTiming& timing);

/// Latencies and bandwidths of all links; of up to 16 ranks as matrices.
std::string links_table(const std::vector<Link>& links, int ranks);

/// A line for each slow rank and link, at most eight and the number of the rest.
std::string slow_lines(const std::vector<Slow>& slow);

}  // namespace tutti::tool
