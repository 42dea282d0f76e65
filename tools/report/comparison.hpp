#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/exit_code.hpp"
#include "common/names.hpp"
#include "common/significance.hpp"
#include "report/fields.hpp"
#include "report/saved_run.hpp"

// The comparison of two lists of saved runs, OLD and NEW, row by row.

namespace tutti::tool {

enum class Change : std::uint8_t { faster, slower, same, noisy };
template <>
inline constexpr Names<4> names_of<Change>{"faster", "slower", "same", "noisy"};

/// The values that are resampled and ranked as one. Samples of a run are alike, because the machine
/// drifts and a process keeps its memory and its CPUs; so they are no units.
enum class Unit : std::uint8_t {
  round,  ///< A run of OLD and one of NEW that followed each other: the ratio of their p50.
  run,    ///< The p50 of a run, of several on each side.
  block   ///< The p50 of a block of iterations, of one run on each side.
};
template <>
inline constexpr Names<3> names_of<Unit>{"round", "run", "block"};

struct ComparedRow {
  SavedRow row{};         ///< Of the first run of NEW.
  std::string backend{};  ///< Empty: each side has one backend.
  double old_us = 0;      ///< Median over the units, as is new_us.
  double new_us = 0;
  std::int64_t old_units = 0;
  std::int64_t new_units = 0;
  double ratio = 1;                    ///< NEW / OLD.
  std::optional<Interval> interval{};  ///< 95 % of the ratio; empty with too few units.
  double p = 1;                        ///< Adjusted for the number of rows.
  Change change = Change::noisy;
};

struct Comparison {
  std::string old_name{};
  std::string new_name{};
  double threshold = 0.05;
  Unit unit = Unit::run;
  std::vector<std::string> differences{};  ///< "backend.version: 2.27.3 -> 2.30.7".
  std::vector<std::string> notes{};
  std::vector<ComparedRow> rows{};
  std::vector<std::string> only_old{};  ///< Rows of OLD without one of NEW.
  std::vector<std::string> only_new{};
  std::vector<std::string> wrong{};  ///< Rows with wrong elements.

  std::int64_t count(Change change) const noexcept;
};

/// A row is slower or faster if its ratio is beyond the threshold, p is below 0.01 and the interval
/// does not contain 1. It is the same if the interval is within the threshold; otherwise noisy.
/// @param paired  old_runs[i] and new_runs[i] followed each other, in random order.
Comparison compare(std::span<const SavedRun> old_runs, std::span<const SavedRun> new_runs,
                   double threshold, bool paired);

/// `wrong_data` if a row is wrong; `gate` if a row is slower or no row is on both sides, with
/// `strict` also if a row is too noisy or only in OLD; otherwise `ok`.
Exit exit_of(const Comparison& comparison, bool strict) noexcept;

/// The JSON Schema of a comparison.
std::string comparison_schema();

void describe(Fields& fields, const Comparison& comparison);
/// "1 of 3 rows slower by 5% or more (p < 0.01) over 24 rounds; 0 faster, ...".
std::string comparison_summary(const Comparison& comparison);
std::string comparison_table(const Comparison& comparison);
std::string comparison_markdown(const Comparison& comparison);

}  // namespace tutti::tool
