#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/statistics.hpp"
#include "report/record.hpp"

// The record of a run of `tutti bench step`: plain values. Times are over rounds; a round's is that
// of the slowest rank.

namespace tutti::tool {

/// The steps with one size of buckets.
struct StepRow {
  std::int64_t bucket_bytes = 0;
  std::int64_t buckets = 0;
  std::int64_t bytes = 0;              ///< Of all buckets.
  std::int64_t last_bucket_bytes = 0;  ///< Of the bucket that is launched last.
  Summary communication_us{};          ///< Steps without compute.
  double communication_cpu = 0;        ///< Processors that the busiest rank uses in such steps.
  std::optional<Summary> compute_us{};
  std::optional<Summary> overlap_us{};
  std::optional<Summary> no_overlap_us{};
  std::optional<Summary> calls_us{};
  std::optional<std::int64_t> wrong{};  ///< Elements, on all ranks; empty if not checked.
  std::optional<FirstWrong> first_wrong{};

  /// max(compute, communication) and the last bucket's part of the communication, which no compute
  /// can hide.
  std::optional<double> bound_us() const;
  /// The part of the shorter one of compute and communication that overlapped: 1 is all.
  std::optional<double> hidden() const;
};

struct StepRecord : RunRecord {
  std::vector<StepRow> rows{};
};

void describe(Fields& fields, const StepRow& row);

}  // namespace tutti::tool
