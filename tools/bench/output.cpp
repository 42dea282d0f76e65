#include "bench/output.hpp"

#include "bench/json.hpp"
#include "bench/markdown.hpp"
#include "bench/rows.hpp"
#include "bench/table.hpp"

namespace tutti::tool {

std::optional<Format> format_of(std::string_view path) noexcept {
  if (path.ends_with(".json")) return Format::json;
  if (path.ends_with(".ndjson")) return Format::ndjson;
  if (path.ends_with(".csv")) return Format::csv;
  if (path.ends_with(".md")) return Format::markdown;
  return std::nullopt;
}

std::string render(Format format, const BenchRecord& record, const BenchOptions& options) {
  switch (format) {
    case Format::table:
      return {};
    case Format::json:
      return dump(to_json(record, options), 2) + "\n";
    case Format::ndjson:
      return to_ndjson(to_json(record, options));
    case Format::csv:
      return to_csv(to_json(record, options));
    case Format::markdown:
      break;
  }
  return to_markdown(
      record, options.percentiles_given ? options.timing.percentiles : TableOptions().percentiles);
}

}  // namespace tutti::tool
