#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/dtype.hpp>
#include <tutti/reduce_op.hpp>

#include "statistics.hpp"

// What a run leaves: plain values, that the outputs print.

namespace tutti::tool {

enum class Place : std::uint8_t { out, in };
constexpr std::string_view name_of(Place place) noexcept {
  return place == Place::out ? "out" : "in";
}

enum class Flag : std::uint8_t { few_samples, noisy, slow_first, capped_mem };
std::string_view name_of(Flag flag) noexcept;

/// What all rows of one sweep share.
struct Key {
  std::string coll{};
  std::optional<DType> dtype{};        ///< Empty for barrier.
  std::optional<ReduceOp::Kind> op{};  ///< Empty where nothing is reduced.
  std::optional<Place> place{};        ///< Empty for barrier.
  std::optional<int> root{};           ///< Empty where there is none.
  std::string counts{};                ///< How S is cut; empty where it is not.

  friend bool operator==(const Key&, const Key&) = default;
};

struct FirstWrong {
  int rank = 0;
  std::string array{};     ///< "out", or "in" when an input was changed.
  std::int64_t index = 0;  ///< In elements; outside of the array for a guard byte.
  std::string expected{};
  std::string got{};
};

struct Row {
  Key key{};
  std::int64_t bytes = 0;
  std::int64_t count = 0;
  int ranks = 1;
  std::vector<std::int64_t> counts{};  ///< Elements of each rank's block; empty when all alike.
  Summary time_us{};
  std::map<double, double> percentiles_us{};  ///< 50, 90, 99 and those that were asked for.
  std::vector<double> rank_mean_us{};
  int slowest_rank = 0;
  std::optional<double> algbw{};        ///< GB/s; empty for barrier.
  std::optional<double> busbw{};        ///< Empty for barrier, and when nothing crosses a link.
  std::optional<std::int64_t> wrong{};  ///< Elements on all ranks; empty when not checked.
  std::optional<FirstWrong> first_wrong{};
  std::vector<double> samples_us{};  ///< Kept with --samples all.
  std::vector<Flag> flags{};
  std::int64_t warmup_calls = 0;
  std::int64_t calls_per_sample = 1;  ///< Queued back to back; on a device alone more than one.

  bool has(Flag flag) const noexcept;
};

struct KeyedFit {
  Key key{};
  Fit fit{};
};

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

struct Record {
  Status status = Status::ok;
  std::string error{};  ///< One line, for timeout and error.
  std::chrono::system_clock::time_point started{};
  double duration_s = 0;
  std::vector<std::string> argv{};
  BackendInfo backend{};
  World world{};
  std::vector<Row> rows{};
  std::vector<KeyedFit> fits{};
  std::vector<std::string> notes{};
};

}  // namespace tutti::tool
