#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "report/saved_run.hpp"

namespace tutti::tool {

/// The outcome of a rule.
struct Gate {
  std::string rule{};
  bool pass = false;
  std::string found{};  ///< "3 rows, worst 201.3 GB/s: all_reduce f32 sum 64 MiB, 8 ranks".
};

/// Checks a rule: "ROWS : METRIC OP VALUE", such as "all_reduce f32 >=64M : busbw >= 180",
/// "all_reduce <=8K : p99 <= 60us" or "* : wrong == 0". Each word of ROWS excludes rows: a name of
/// the row, a size or bounds of it, or "*". All rows that are left must fulfil the rule, and there
/// must be one. Barrier has neither bandwidth nor wrong elements, so such rules leave it out.
/// @throws Failure usage for a rule that cannot be read.
Gate check_rule(std::string_view rule, std::span<const SavedRun> runs);

}  // namespace tutti::tool
