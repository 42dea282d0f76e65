#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "report/figures.hpp"
#include "report/saved_run.hpp"

// The pictures of runs of `tutti bench`.

namespace tutti::tool {

/// Rows that one line of a plot shows, by ascending size.
struct Curve {
  std::string name{};
  std::vector<SavedRow> rows{};
};

/// The curves of one figure.
struct Sweep {
  std::string title{};
  std::vector<Curve> curves{};
};

/// A short name for each run that no other has: the backend, or else the file.
std::vector<std::string> names_of_runs(std::span<const SavedRun> runs);

/// One run: a sweep per collective, a curve for each of its dtypes, operations and so on.
/// Several runs: a sweep per call that is measured, a curve per run.
std::vector<Sweep> sweeps_of(std::span<const SavedRun> runs);

/// Time and bus bandwidth against size: the line is p50, the band reaches to p99. One curve has a
/// line fitted to its times, too. Without a size, the note has the times.
std::vector<Plot> size_plots(const Sweep& sweep);

/// The iterations of runs with --samples all, of the size of each curve with the widest spread.
std::optional<Plot> sample_plot(const Sweep& sweep);

/// How much slower each rank is than the median rank, for every size. Empty for one rank.
std::optional<HeatMap> rank_map(const Curve& curve);

/// size_plots() of all sweeps.
std::string svg_of(std::span<const SavedRun> runs);

}  // namespace tutti::tool
