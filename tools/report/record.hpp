#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/message.hpp"
#include "common/names.hpp"
#include "common/statistics.hpp"
#include "report/fields.hpp"

// The record of a run of any command with ranks: plain values.

namespace tutti::tool {

/// Times of repeated calls, in microseconds.
void describe(Fields& fields, const Summary& us);
/// A column with their median in milliseconds.
Column milliseconds(std::string heading, const Summary& us);

/// The first wrong element of a row.
struct FirstWrong {
  int rank = 0;
  std::string array{};     ///< "out", or "in": a modified input; of steps, the parameter.
  std::int64_t index = 0;  ///< Element index; outside of the array for a guard byte.
  std::string expected{};
  std::string got{};
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FirstWrong, rank, array, index, expected, got)
void describe(Fields& fields, const FirstWrong& first);
/// The wrong elements of a row, in one line.
std::string describe_wrong(const std::optional<std::int64_t>& wrong,
                           const std::optional<FirstWrong>& first);

/// The program that made a record.
struct Tool {
  std::string version{};
};
void describe(Fields& fields, const Tool& tool);

struct RankInfo {
  int rank = 0;
  std::string host{};
  int pid = 0;
  std::string device{};
  std::string cpuset{};
  std::string model{};
};

struct World {
  int size = 1;
  int hosts = 1;
  bool threads = false;  ///< The ranks are threads of one process.
  bool oversubscribed = false;
  int cpus = 1;  ///< CPUs that the ranks of rank 0's host may use.
  std::vector<RankInfo> ranks{};
};

struct BackendInfo {
  std::string name{};
  std::string version{};
  std::string chosen_because{};
  std::string transport{};  ///< "tcp/eth0"; empty if the ranks share memory.
};

enum class Status : std::uint8_t { ok, wrong_data, timeout, interrupted, error };
template <>
inline constexpr Names<5> names_of<Status>{"ok", "wrong_data", "timeout", "interrupted", "error"};

struct RunRecord {
  Status status = Status::ok;
  std::string error{};  ///< One line, for status timeout and error.
  std::chrono::system_clock::time_point started{};
  double duration_s = 0;
  std::vector<std::string> argv{};
  std::map<std::string, std::string> env{};
  BackendInfo backend{};
  World world{};
  std::vector<std::string> notes{};
};

/// The fields that every run has.
void describe(Fields& fields, const RunRecord& record);

/// "4 ranks / 1 host  gloo tcp/lo".
std::string describe_world(const RunRecord& record);

/// The beginning of a Markdown file: a title, the status unless it is ok, and the notes.
std::string markdown_head(std::string_view title, const RunRecord& record);

}  // namespace tutti::tool
