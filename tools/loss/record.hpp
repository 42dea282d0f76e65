#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <tutti/row_layout.hpp>

#include "common/statistics.hpp"
#include "loss/compare.hpp"
#include "loss/measure.hpp"
#include "report/record.hpp"

// The record of a run of `tutti loss`: plain values.

namespace tutti::tool {

struct LossRow {
  LossKind kind{};
  std::optional<double> temperature{};
  std::optional<std::int64_t> valid_classes{};  ///< Ranking losses: of the last call.
  std::optional<std::int64_t> queued{};         ///< Rows in the queue before the timed calls.
  double loss = 0;                              ///< Loss of the last compared call.
  double gradient_norm = 0;
  LossDifferences difference{};  ///< Differences of all ranks and calls.
  Spread time_us{};              ///< Per round, the time of the slowest rank.
  Spread time_us_one_process{};
  std::vector<std::uint64_t> evaluations{};  ///< Evaluations of each rank.
  std::uint64_t evaluations_one_process = 0;
  std::optional<std::int64_t> peak_extra_bytes{};  ///< The largest of all processes.
  std::optional<std::int64_t> peak_extra_bytes_one_process{};
  std::optional<PairTime> pairs{};

  /// Speedup of one process over the loop of pairs; empty without that loop.
  std::optional<double> speedup() const;
};

struct LossRecord : RunRecord {
  RowLayout layout{};
  std::vector<LossRow> rows{};
};

void describe(Fields& fields, const LossDifferences& difference);
void describe(Fields& fields, const LossMismatch& worst);
void describe(Fields& fields, const LossRow& row);

/// The numbers of a row that differ, in one line.
std::string describe_wrong(const LossRow& row);

}  // namespace tutti::tool
