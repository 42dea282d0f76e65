#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/names.hpp"
#include "common/option.hpp"
#include "report/fields.hpp"
#include "report/json.hpp"

namespace tutti::tool {

enum class Format : std::uint8_t { table, json, ndjson, csv, markdown };
template <>
inline constexpr Names<5> names_of<Format>{"table", "json", "ndjson", "csv", "md"};

/// The format of a file by the ending of its name. @throws Failure usage for an unknown one.
Format format_of(std::string_view path);

/// The destinations of a run's output.
struct OutputOptions {
  Format format = Format::table;
  std::vector<std::string> files{};  ///< Their endings select the formats.
  std::vector<std::string>
      env_allow{};  ///< More environment variables for the record, as shell patterns.
  std::vector<std::string> argv{};
};

/// Adds the options of the destinations, which set `to`.
void add_output_options(OptionList& options, OutputOptions& to);

/// A run in every format.
struct Report {
  std::function<Field()> run{};
  std::span<const std::string_view> shared{};  ///< Fields of the run in CSV; see to_csv().
  std::function<std::string()> table{};        ///< Empty: printed during the run.
  std::function<std::string()> markdown{};
};

/// Checks before the measurement that the files can be written. @throws Failure usage for a file
/// that cannot be written.
void check_files(const OutputOptions& options);

/// Prints to `out` and writes the files. @throws Failure usage if a file cannot be created,
/// internal if a write fails.
void write(const OutputOptions& options, const Report& report, std::FILE* out);

/// Flushes `out`. @throws Failure internal if output to `out` failed.
void flush(std::FILE* out);

}  // namespace tutti::tool
