#include "step/step.hpp"

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

/// The columns of the table.
const std::vector<std::string> columns{"bucket_bytes",
                                       "buckets",
                                       "communication_us",
                                       "communication_gbps",
                                       "communication_cpu",
                                       "compute_us",
                                       "overlap_us",
                                       "no_overlap_us",
                                       "hidden",
                                       "calls_us",
                                       "wrong"};

void describe_config(Fields& fields, const StepOptions& options) {
  const std::int64_t elements = options.model.elements();
  fields("model", options.model.name);
  fields("parameters", std::ssize(options.model.parameters), {.at_least = 1});
  fields("elements", elements, "of all gradients", {.at_least = 1});
  fields("dtype", tutti::name_of(options.dtype), "f16, bf16, f32 or f64");
  fields("bucket_bytes", options.bucket_bytes, {.at_least = 1});
  fields("hook", options.hook);
  fields("as_view", options.as_view, "gradients live in the buckets");
  fields("compute_s", seconds(options.compute), "processor time of the compute loop of a step",
         {.at_least = 0});
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

/// A line or a row of Markdown for each row of the run; only columns that have a value in this run.
template <typename Heading, typename Line>
std::string lines(const StepRecord& record, const StepOptions& options, Heading heading,
                  Line line) {
  std::vector<std::string> kept;
  for (const std::string& column : columns) {
    const bool needs_compute =
        column == "compute_us" || column.find("overlap") != column.npos || column == "hidden";
    if (needs_compute ? options.compute.count() > 0 : column != "calls_us" || options.calls)
      kept.push_back(column);
  }
  std::string text;
  for (const StepRow& row : record.rows) {
    const TableRow cells(Fields::object(row), kept);
    if (text.empty()) text = "\n" + (cells.*heading)();
    text += (cells.*line)();
  }
  return text;
}

/// The table, in at most 80 columns without --calls; empty without results.
std::string table(const StepRecord& record, const StepOptions& options) {
  if (record.rows.empty()) return {};  // The run ended before the first result.
  std::string text =
      fmt::format("tutti bench step {}  {}\n  {}\n  {}\n", library_version_string(),
                  describe_world(record), describe_model(options), describe_steps(options));
  for (const std::string& note : record.notes) text += paragraph("note: " + note);
  const auto fewest = std::ranges::min_element(
      record.rows, {}, [](const StepRow& row) { return row.communication_us.n; });
  return text + lines(record, options, &TableRow::heading, &TableRow::line) +
         fmt::format("  medians of at least {}      {:.1f} s\n",
                     plural(fewest->communication_us.n, "round"), record.duration_s);
}

std::string markdown(const StepRecord& record, const StepOptions& options) {
  return markdown_head(fmt::format("tutti bench step {}: {}", library_version_string(),
                                   describe_model(options)),
                       record) +
         fmt::format("\n{}\n", describe_steps(options)) +
         lines(record, options, &TableRow::markdown_heading, &TableRow::markdown_line);
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
