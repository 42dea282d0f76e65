#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <tutti/trace_file.hpp>

namespace tutti::tool {

/// The trace of one rank.
struct RankTrace {
  TraceFile file{};
  bool gone = false;  ///< Its process no longer exists; false also if that is unknown.
};

/// Something that is wrong in a group.
struct Finding {
  std::string kind{};  ///< missing, diverged, lags, ended, failed or waits.
  std::string text{};
};

/// The place of a rank in its calls.
struct RankReport {
  int rank = 0;
  std::int64_t pid = 0;
  std::string host{};
  std::string state{};     ///< "closed", "open", or "gone": without closing the group.
  std::string finished{};  ///< The last collective that is done, or message; empty: none.
  std::string current{};   ///< The oldest collective that is running, or message; empty: none.
  std::optional<double> age_s{};  ///< Time since it entered `current`.
};

struct GroupReport {
  std::string name{};
  std::chrono::system_clock::time_point made{};
  int size = 1;
  std::string missing{};  ///< Ranks without a file: "3,5-7".
  std::vector<RankReport> ranks{};
  std::vector<Finding> findings{};
};

/// Compares the traces of ranks, which may be of several groups and may have any contents. If a
/// rank has several traces of a group, the last counts.
std::vector<GroupReport> diagnose(std::vector<RankTrace> traces,
                                  std::chrono::system_clock::time_point now);

}  // namespace tutti::tool
