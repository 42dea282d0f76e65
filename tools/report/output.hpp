#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
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

/// The format that the name of a file asks for, by its ending; empty for an unknown one.
std::optional<Format> format_of(std::string_view path) noexcept;

/// Where a run is printed and written.
struct OutputOptions {
  Format format = Format::table;
  std::vector<std::string> files{};      ///< Their endings say the formats.
  std::vector<std::string> env_allow{};  ///< Environment variables beside the usual ones.
  std::vector<std::string> argv{};
};

/// The same as text, from the command line.
struct OutputTexts {
  std::string format = "table";
  std::vector<std::string> files{};
  std::vector<std::string> env_allow{};

  void add_to(OptionList& options);
  /// @throws Failure usage.
  void parse(OutputOptions& options, const std::vector<std::string>& argv) const;
};

/// A run in every format.
struct Report {
  std::function<Field()> run{};
  std::span<const std::string_view> shared{};  ///< As to_csv() has it.
  std::function<std::string()> table{};        ///< Empty: printed while the run went on.
  std::function<std::string()> markdown{};
};

/// Now, not after minutes of measuring.
/// @throws Failure usage when a file cannot be written.
void check_files(const OutputOptions& options);

/// Prints to `out` and writes the files.
/// @throws Failure internal.
void write(const OutputOptions& options, const Report& report, std::FILE* out);

/// @throws Failure internal when what was printed to `out` did not get there.
void flush(std::FILE* out);

}  // namespace tutti::tool
