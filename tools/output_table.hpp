#pragma once

#include <cstdio>
#include <span>
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
  /// `several_algos`: the rows say which one is theirs.
  void begin_block(const Key& key, bool several_algos);
  void row(const Row& row);
  void end_block(const std::vector<KeyedFit>& fits);
  void end(const Record& record);

 private:
  void print_row(const Row& row);
  void print_legend(const Record& record);

  std::FILE* out_;
  TableOptions options_;
  bool several_algos_ = false;
  std::vector<Row> rows_{};  // Of this block.
};

/// "all_reduce  f32 sum  out-of-place  root 0", "all_gather  f32  out-of-place  counts linear".
std::string title(const Key& key);

/// "4 ranks / 1 host  gloo tcp/lo".
std::string describe_world(const Record& record);

/// "ok", "BAD", or "-" when not checked.
std::string_view check_word(const Row& row);

std::string describe_fit(const Fit& fit);

/// What auto chose for the sizes of a sweep: "native", or "direct (up to 64 KiB), ring". `rows` are
/// in order of size.
std::string describe_choice(std::span<const Row> rows);

/// Of a sweep of several algorithms the fastest for each size, by the median, and how much longer
/// the backend's own takes: "1 KiB direct (native x1.08), 1 MiB native".
std::string describe_fastest(std::span<const Row> rows);

/// What a reader has to know about wrong data, in one line.
std::string describe_wrong(const Row& row);

}  // namespace tutti::tool
