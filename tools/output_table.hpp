#pragma once

#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plan.hpp"
#include "record.hpp"

namespace tutti::tool {

struct TableOptions {
  std::vector<double> percentiles{50, 99};  ///< The columns.
  bool single_block = true;                 ///< Then the title names it.
  bool sort_rows = false;                   ///< Measured in random order: print when complete.
  bool fixed_iterations = false;
};

/// Prints a run while it is measured: begin, then for each block its rows, then end.
class Table {
 public:
  Table(std::FILE* out, TableOptions options);

  /// `record` has the world, the backend and the notes so far.
  void begin(const Record& record, const Key& first);
  void begin_block(const Key& key);
  void row(const Row& row);
  void end_block(const std::optional<Fit>& fit);
  void end(const Record& record);

 private:
  void print_row(const Row& row);
  void print_legend(const Record& record);

  std::FILE* out_;
  TableOptions options_;
  std::vector<Row> rows_{};  // Of this block.
};

/// "all_reduce  f32 sum  out-of-place  root 0", "all_gather  f32  out-of-place  counts linear".
std::string title(const Key& key);

/// "4 ranks / 1 host  gloo tcp/lo".
std::string describe_world(const Record& record);

/// "ok", "BAD", or "-" when not checked.
std::string_view check_word(const Row& row);

std::string describe_fit(const Fit& fit);

/// What a reader has to know about wrong data, in one line.
std::string describe_wrong(const Row& row);

}  // namespace tutti::tool
