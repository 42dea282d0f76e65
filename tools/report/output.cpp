#include "report/output.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "common/atomic_file.hpp"
#include "common/exit_code.hpp"
#include "common/text.hpp"
#include "report/page.hpp"
#include "report/run_figures.hpp"
#include "report/saved_run.hpp"

namespace tutti::tool {
namespace {

bool is_picture(Format format) {
  return format == Format::svg || format == Format::html;
}

/// What the JSON of a run shows, whether it is drawn now or from its file.
std::string drawn(Format format, const Report& report) {
  if (format == Format::svg && report.svg) return report.svg();
  const std::array runs{parse_saved_run(to_json(report.run()), "")};
  return format == Format::svg ? svg_of(runs) : page_of(runs);
}

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
    case Format::svg:
    case Format::html:
      return drawn(format, report);
    case Format::markdown:
      break;
  }
  return report.markdown();
}

}  // namespace

std::optional<Format> format_of(std::string_view path) noexcept {
  if (path.ends_with(".json")) return Format::json;
  if (path.ends_with(".ndjson")) return Format::ndjson;
  if (path.ends_with(".csv")) return Format::csv;
  if (path.ends_with(".md")) return Format::markdown;
  if (path.ends_with(".svg")) return Format::svg;
  if (path.ends_with(".html")) return Format::html;
  return std::nullopt;
}

void OutputTexts::add_to(OptionList& options) {
  options.insert(
      options.end(),
      {{"-f,--format", &format,
        pictures ? "of stdout: table, json, ndjson, csv, md, svg or html"
        : svg    ? "of stdout: table, json, ndjson, csv, md or svg"
                 : "of stdout: table, json, ndjson, csv or md",
        "FORMAT", "Output"},
       {"--out", &files,
        pictures
            ? "also write this, by its ending: .json .ndjson .csv .md .svg .html;\nmay be repeated"
        : svg ? "also write this, by its ending: .json .ndjson .csv .md .svg; may be\nrepeated"
              : "also write this, by its ending: .json .ndjson .csv .md; may be\nrepeated",
        "FILE", "Output"},
       {"--env-allow", &env_allow, "record these variables too; may be repeated", "GLOB",
        "Output"}});
}

void OutputTexts::parse(OutputOptions& options, const std::vector<std::string>& argv) const {
  options.argv = argv;
  const auto formats = std::span(names_of<Format>)
                           .first(pictures ? names_of<Format>.size()
                                  : svg    ? 6
                                           : 5);
  options.format = static_cast<Format>(parse_choice("--format", format, formats));
  options.files = files;
  options.env_allow = env_allow;
  for (const std::string& file : files) {
    const std::optional<Format> named = format_of(file);
    const bool drawable = pictures || (svg && named == Format::svg);
    if (!named || (is_picture(*named) && !drawable))
      refuse("--out {}: its name must end in .json, .ndjson, .csv{}", file,
             pictures ? ", .md, .svg or .html"
             : svg    ? ", .md or .svg"
                      : " or .md");
  }
}

void check_files(const OutputOptions& options) {
  for (const std::string& path : options.files) AtomicFile{path};
}

void write(const OutputOptions& options, const Report& report, std::FILE* out) {
  fmt::print(out, "{}", render(options.format, report));
  for (const std::string& path : options.files)
    AtomicFile(path).commit(render(format_of(path).value(), report));
  flush(out);
}

void flush(std::FILE* out) {
  if (std::fflush(out) != 0) throw Failure(Exit::internal, "cannot write the output to stdout");
}

}  // namespace tutti::tool
