#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "report/record.hpp"

// A run of `tutti bench` as its JSON file has it.

namespace tutti::tool {

/// A row of a saved run. Names are text, because another release may have written the file.
struct SavedRow {
  std::string coll{};
  std::string dtype{};        ///< Empty for barrier.
  std::string op{};           ///< Empty without a reduction.
  std::string place{};        ///< "out" or "in"; empty for barrier.
  std::optional<int> root{};  ///< Empty without a root.
  std::string layout{};       ///< Division of S, as in --counts; empty if S is not divided.
  std::vector<std::int64_t> counts{};
  std::int64_t bytes = 0;
  std::int64_t count = 0;
  int ranks = 1;
  Summary time_us{};
  std::map<double, double> percentiles_us{};  ///< Has 50, 90 and 99.
  std::vector<double> rank_mean_us{};
  int slowest_rank = 0;
  std::optional<double> algbw{};
  std::optional<double> busbw{};
  std::optional<std::int64_t> wrong{};
  std::vector<std::string> flags{};
  std::vector<double>
      block_p50_us{};                ///< Medians of consecutive blocks of iterations; may be empty.
  std::vector<double> samples_us{};  ///< Only of runs with --samples all.
};

struct SavedRun : RunRecord {
  std::string file{};
  std::string version{};  ///< Of the tool, as are the next two.
  std::string git{};
  std::string build{};
  std::map<std::string, std::string> config{};  ///< Values as JSON texts; strings without quotes.
  std::vector<SavedRow> rows{};
};

/// Reads the JSON of `tutti bench`. Ignores fields that it does not know.
/// @throws Failure usage, naming the file, the field and what was expected.
SavedRun read_saved_run(const std::string& file);

/// The same for a text; errors name `file`.
SavedRun parse_saved_run(std::string_view text, const std::string& file);

/// "all_reduce f32 sum", "broadcast f32 in-place root 1", "all_gather f32 linear": without what is
/// usual (out of place where there is a choice, root 0, even blocks).
std::string title(const SavedRow& row);

/// "1 KiB"; "-" for barrier, which has no size.
std::string size_text(const SavedRow& row);

}  // namespace tutti::tool
