#pragma once

#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/record.hpp"

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
  void begin(const BenchRecord& record, const Key& first);
  void begin_block(const Key& key);
  void row(const Row& row);
  void end_block(const std::optional<Fit>& fit);
  void end(const BenchRecord& record);

 private:
  void print_row(const Row& row);
  void print_legend(const BenchRecord& record);

  std::FILE* out_;
  TableOptions options_;
  std::vector<Row> rows_{};  // Of this block.
};

/// "ok", "BAD", or "-" when not checked.
std::string_view check_word(const Row& row);

std::string describe_fit(const Fit& fit);

}  // namespace tutti::tool
