#pragma once

#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/options.hpp"
#include "bench/record.hpp"

namespace tutti::tool {

/// Prints a run while it is measured: begin, then for each block its rows, then end.
class Table {
 public:
  /// @param options       outlive it.
  /// @param single_block  there is one block, which the title names.
  Table(std::FILE* out, const BenchOptions& options, bool single_block);

  /// `record` has the world, the backend and the notes so far.
  void begin(const BenchRecord& record, const Key& first);
  void begin_block(const Key& key);
  void row(const Row& row);
  /// `rows`: all rows of the block. `fit`: empty if there is no fit.
  void end_block(std::span<const Row> rows, const std::optional<Fit>& fit);
  void end(const BenchRecord& record);

 private:
  void print_row(const Row& row);
  void print_legend(const BenchRecord& record);

  std::FILE* out_;
  const BenchOptions& options_;
  std::vector<std::string> columns_;
  bool single_block_;
  bool sort_rows_;  // Rows in random order are printed when complete.
};

/// A run in every format but the table, which is printed during the run. Both arguments outlive it.
Report bench_report(const BenchRecord& record, const BenchOptions& options);

/// The JSON Schema of the output of `tutti bench -f json`.
std::string bench_schema();

}  // namespace tutti::tool
