#include "step/output.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include <tutti/version.hpp>

#include "common/duration.hpp"
#include "common/text.hpp"
#include "report/json.hpp"
#include "report/table.hpp"

namespace tutti::tool {
namespace {

/// Fields of the run in every row of CSV and NDJSON.
constexpr std::array<std::string_view, 12> shared{
    "started",           "status",          "tool.version", "tool.git",     "backend.name",
    "backend.transport", "world.size",      "world.hosts",  "config.model", "config.dtype",
    "config.hook",       "config.compute_s"};

/// The columns of the two tables, which are one table in Markdown.
const std::vector<std::string> steps{
    "bucket_bytes",        "buckets",       "communication_us",       "compute_us", "overlap_us",
    "overlap_steps_per_s", "no_overlap_us", "no_overlap_steps_per_s", "wrong"};
const std::vector<std::string> details{
    "bucket_bytes", "communication_gbps", "communication_cpu", "hidden",
    "bound_us",     "overlap_over_bound", "calls_us",          "calls_over_communication"};

void describe_config(Fields& fields, const StepOptions& options) {
  const std::int64_t elements = options.model.elements();
  fields("model", options.model.name);
  fields("parameters", std::ssize(options.model.parameters), {.at_least = 1});
  fields("elements", elements, "of all gradients", {.at_least = 1});
  fields("dtype", tutti::name_of(options.dtype), "f16, bf16, f32 or f64");
  fields("bucket_bytes", options.bucket_bytes, {.at_least = 1});
  fields("first_bucket_bytes", options.first_bucket_bytes, "null: 1 MiB, but at most bucket_bytes",
         {.at_least = 1});
  fields("hook", options.hook);
  fields("as_view", options.as_view, "gradients live in the buckets");
  fields("compute_s", seconds(options.compute), "processor time of the compute loop of a step",
         {.at_least = 0});
  fields("overlap", options.overlap);
  fields("no_overlap", options.no_overlap);
  fields("calls", options.calls);
  fields("rounds", options.rounds, {.at_least = 1, .instead = "auto"});
  fields("warmup", options.warmup, "rounds", {.at_least = 0});
  fields("min_time_s", seconds(options.min_time));
  fields("check", options.check);
  fields("seed", options.seed, {.at_least = 0});
  fields("timeout_s", seconds(options.timeout));
}

Field describe_run(const StepRecord& record, const StepOptions& options) {
  return Fields::object([&](Fields& fields) {
    describe(fields, static_cast<const RunRecord&>(record));
    fields("config", [&](Fields& config) { describe_config(config, options); });
    fields("results", record.rows);
  });
}

/// "resnet50  161 gradients  97.5 MiB of f32".
std::string describe_model(const StepOptions& options) {
  const std::int64_t bytes =
      options.model.elements() * static_cast<std::int64_t>(size_of(options.dtype));
  return fmt::format("{}  {}  {} of {}", options.model.name,
                     plural(std::ssize(options.model.parameters), "gradient"), format_bytes(bytes),
                     tutti::name_of(options.dtype));
}

/// "hook all_reduce, 100 ms of compute a step".
std::string describe_steps(const StepOptions& options) {
  const bool computes = options.compute.count() > 0;
  return fmt::format(
      "hook {}, {}{}", name_of(options.hook),
      computes ? format_duration(options.compute) + " of compute a step" : "no compute",
      options.as_view ? ", gradients live in the buckets" : "");
}

/// The columns of both tables that have a value in this run.
std::vector<std::string> present(const std::vector<std::string>& columns,
                                 const StepOptions& options) {
  std::vector<std::string> kept;
  for (const std::string& column : columns) {
    const bool here = column.starts_with("overlap")                    ? options.overlap
                      : column.starts_with("no_overlap")               ? options.no_overlap
                      : column.starts_with("calls")                    ? options.calls
                      : column == "hidden"                             ? options.overlap
                      : column == "compute_us" || column == "bound_us" ? options.compute.count() > 0
                                                                       : true;
    if (here) kept.push_back(column);
  }
  return kept;
}

std::vector<TableRow> table_rows(const StepRecord& record,
                                 const std::vector<std::string>& columns) {
  std::vector<TableRow> rows;
  for (const StepRow& row : record.rows) rows.emplace_back(Fields::object(row), columns);
  return rows;
}

/// The tables, in at most 80 columns; empty without results.
std::string table(const StepRecord& record, const StepOptions& options) {
  if (record.rows.empty()) return {};  // The run ended before the first result.
  std::string text =
      fmt::format("tutti bench step {}  {}\n  {}\n  {}\n", library_version_string(),
                  describe_world(record), describe_model(options), describe_steps(options));
  for (const std::string& note : record.notes) text += paragraph("note: " + note);
  for (const auto& columns : {steps, details}) {
    const std::vector<TableRow> rows = table_rows(record, present(columns, options));
    text += "\n" + rows.front().heading();
    for (const TableRow& row : rows) text += row.line();
  }
  const auto fewest = std::ranges::min_element(
      record.rows, {}, [](const StepRow& row) { return row.communication_us.n; });
  return text + fmt::format("  medians of at least {}      {:.1f} s\n",
                            plural(fewest->communication_us.n, "round"), record.duration_s);
}

std::string markdown(const StepRecord& record, const StepOptions& options) {
  std::string text = markdown_head(
      fmt::format("tutti bench step {}: {}", library_version_string(), describe_model(options)),
      record);
  text += fmt::format("\n{}\n", describe_steps(options));
  if (record.rows.empty()) return text;
  std::vector<std::string> columns = steps;
  columns.insert(columns.end(), details.begin() + 1, details.end());
  const std::vector<TableRow> rows = table_rows(record, present(columns, options));
  text += "\n" + rows.front().markdown_heading();
  for (const TableRow& row : rows) text += row.markdown_line();
  return text;
}

}  // namespace

std::string describe_plan(const StepOptions& options) {
  return to_json(Fields::object([&](Fields& fields) { describe_config(fields, options); }));
}

Report step_report(const StepRecord& record, const StepOptions& options) {
  return {[&] { return describe_run(record, options); }, shared,
          [&] { return table(record, options); }, [&] { return markdown(record, options); }};
}

std::string step_schema() {
  return json_schema("tutti/step-run-1", "A run of tutti bench step", describe_run({}, {}));
}

}  // namespace tutti::tool
