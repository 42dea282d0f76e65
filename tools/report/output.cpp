#include "report/output.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "common/atomic_file.hpp"
#include "common/exit_code.hpp"
#include "common/text.hpp"

namespace tutti::tool {
namespace {

std::string render(Format format, const Report& report) {
  switch (format) {
    case Format::table:
      return report.table ? report.table() : std::string();
    case Format::json:
      return to_json(report.run());
    case Format::ndjson:
      return to_ndjson(report.run(), report.shared);
    case Format::csv:
      return to_csv(report.run(), report.shared);
    case Format::markdown:
      break;
  }
  return report.markdown();
}

}  // namespace

Format format_of(std::string_view path) {
  if (path.ends_with(".json")) return Format::json;
  if (path.ends_with(".ndjson")) return Format::ndjson;
  if (path.ends_with(".csv")) return Format::csv;
  if (path.ends_with(".md")) return Format::markdown;
  refuse("--out {}: its name must end in .json, .ndjson, .csv or .md", path);
}

void add_output_options(OptionList& options, OutputOptions& to) {
  options.insert(options.end(),
                 {{"-f,--format", to_choice(to.format), "of stdout: table, json, ndjson, csv or md",
                   "FORMAT", "Output"},
                  {"--out", &to.files,
                   "also write this, by its ending: .json .ndjson .csv .md; may be\nrepeated",
                   "FILE", "Output"},
                  {"--env-allow", &to.env_allow, "record these variables too; may be repeated",
                   "GLOB", "Output"}});
}

void check_files(const OutputOptions& options) {
  for (const std::string& path : options.files) AtomicFile{path};
}

void write(const OutputOptions& options, const Report& report, std::FILE* out) {
  fmt::print(out, "{}", render(options.format, report));
  for (const std::string& path : options.files)
    AtomicFile(path).commit(render(format_of(path), report));
  flush(out);
}

void flush(std::FILE* out) {
  if (std::fflush(out) != 0) throw Failure(Exit::internal, "cannot write the output to stdout");
}

}  // namespace tutti::tool
