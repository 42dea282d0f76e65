#pragma once

#include <cstddef>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/options.hpp"
#include "bench/record.hpp"

namespace tutti::tool {

/// Prints a run while it is measured: begin, then for each sweep its rows, then end.
class Table {
 public:
  /// @param options  outlive it.
  /// @param plan     of the run.
  Table(std::FILE* out, const BenchOptions& options, const Plan& plan);

  /// `record` has the world, the backend and the notes so far.
  void begin(const BenchRecord& record, const Key& first);
  void begin_sweep(const Key& key);
  void row(const Row& row);
  /// `rows`: all rows of the sweep.
  void end_sweep(std::span<const Row> rows, const std::optional<Fit>& fit);
  void end(const BenchRecord& record);

 private:
  void print(const Row& row);
  std::string line_of(const Row& row) const;
  std::string heading(const Key& key) const;
  void print_legend(const BenchRecord& record);

  std::FILE* out_;
  const BenchOptions& options_;
  bool single_sweep_;
  bool one_table_;  // Of sweeps with one row each: a row ends with its title.
  std::string last_heading_{};
  bool sort_rows_;  // Sizes come in random order: rows are printed sorted, at the sweep's end.
};

/// The paths of the columns; the last one has the flags.
std::vector<std::string> bench_columns(const BenchOptions& options);

std::string describe_fit(const Fit& fit);

}  // namespace tutti::tool
