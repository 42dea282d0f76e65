#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

// What a run of any command with ranks leaves: plain values, that the outputs print.

namespace tutti::tool {

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
  int cpus = 1;  ///< That the ranks of rank 0's host may use.
  std::vector<RankInfo> ranks{};
};

struct BackendInfo {
  std::string name{};
  std::string version{};
  std::string chosen_because{};
  std::string transport{};  ///< "tcp/eth0"; empty when the ranks share memory.
};

enum class Status : std::uint8_t { ok, wrong_data, timeout, interrupted, error };
std::string_view name_of(Status status) noexcept;

struct RunRecord {
  Status status = Status::ok;
  std::string error{};  ///< One line, for timeout and error.
  std::chrono::system_clock::time_point started{};
  double duration_s = 0;
  std::vector<std::string> argv{};
  BackendInfo backend{};
  World world{};
  std::vector<std::string> notes{};
};

/// "4 ranks / 1 host  gloo tcp/lo".
std::string describe_world(const RunRecord& record);

}  // namespace tutti::tool
