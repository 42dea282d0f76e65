#include "loss/output.hpp"

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
constexpr std::array<std::string_view, 14> shared{
    "started",           "status",      "tool.version", "tool.git",    "backend.name",
    "backend.transport", "world.size",  "world.hosts",  "config.rows", "config.classes",
    "config.dtype",      "config.seed", "config.queue", "config.split"};

/// The columns of the two tables, which are one table in Markdown.
const std::vector<std::string> numbers{
    "loss", "value", "gradient_norm", "difference.loss", "difference.gradient", "wrong"};
const std::vector<std::string> costs{
    "loss",        "time_us_one_process",          "time_us",
    "evaluations", "peak_extra_bytes_one_process", "peak_extra_bytes",
    "pair_loop"};

/// The settings of a run.
void describe_config(Fields& fields, const LossOptions& options, const RowLayout& layout) {
  const LossProblem& problem = options.plan.problem;
  const auto counts = layout.counts();
  fields("losses", options.kinds);
  fields("rows", problem.rows, "of a call, all ranks together", {.at_least = 1});
  fields("classes", problem.classes, {.at_least = 1});
  fields("pos_rate", problem.positive_rate, {.above = 0, .below = 1});
  fields("ignore_rate", problem.ignore_rate, {.at_least = 0, .below = 1});
  fields("dtype", tutti::name_of(problem.dtype), "f32 or f64");
  fields("seed", problem.seed, {.at_least = 0});
  fields("temperature", problem.temperature, "null: each loss has its own", {.above = 0});
  fields("quantile", problem.quantile);
  fields("budget", problem.budget);
  fields("surrogate", problem.surrogate);
  fields("gamma", problem.gamma, {.at_least = 0});
  fields("queue", problem.queue, {.at_least = 0});
  fields("threads", problem.threads, "of smooth_ap, on each rank", {.at_least = 1});
  fields("calls", options.plan.calls, "in a row, whose numbers are compared", {.at_least = 1});
  fields("rounds", options.plan.rounds, "further calls, that are timed", {.at_least = 1});
  fields("tolerance", options.plan.tolerance, {.at_least = 0});
  fields("split", options.split);
  fields("layout", std::vector<std::int64_t>(counts.begin(), counts.end()), "rows of each rank",
         {.at_least = 0});
  fields("timeout_s", seconds(options.timeout));
}

Field describe_run(const LossRecord& record, const LossOptions& options) {
  return Fields::object([&](Fields& fields) {
    describe(fields, static_cast<const RunRecord&>(record));
    fields("config", [&](Fields& config) { describe_config(config, options, record.layout); });
    fields("results", record.rows);
  });
}

/// Selected columns of all rows.
std::vector<TableRow> table_rows(const LossRecord& record,
                                 const std::vector<std::string>& columns) {
  std::vector<TableRow> rows;
  for (const LossRow& row : record.rows) rows.emplace_back(Fields::object(row), columns);
  return rows;
}

/// "10000 rows  1 class  f32".
std::string describe_rows(const LossProblem& problem) {
  return fmt::format("{}  {}  {}", plural(problem.rows, "row"),
                     plural(problem.classes, "class", "classes"), tutti::name_of(problem.dtype));
}

/// "5% positive, 0% ignored, seed 0, 1 call compared".
std::string describe_data(const LossOptions& options) {
  const LossProblem& problem = options.plan.problem;
  std::string text = fmt::format("{:g}% positive, {:g}% ignored, seed {}, {} compared",
                                 100 * problem.positive_rate, 100 * problem.ignore_rate,
                                 problem.seed, plural(options.plan.calls, "call"));
  if (problem.queue > 0) text += fmt::format(", queue {}", problem.queue);
  return text;
}

std::string describe_split(const LossRecord& record, const LossOptions& options) {
  return fmt::format("rows of the ranks: {} {}", name_of(options.split), to_string(record.layout));
}

/// Lines below the tables.
std::vector<std::string> legend(const LossRecord& record, const LossOptions& options) {
  std::vector<std::string> lines;
  if (std::ranges::any_of(record.rows,
                          [](const LossRow& row) { return row.pairs && row.pairs->estimated; }))
    lines.emplace_back("~  the loop of pairs was timed on a part of its anchors");
  if (record.world.threads && record.world.size > 1)
    lines.emplace_back("the ranks are threads: their memory is that of all together");
  const auto bad = std::ranges::count_if(
      record.rows, [](const LossRow& row) { return row.difference.wrong != 0; });
  const auto all = std::ssize(record.rows);
  lines.push_back(fmt::format("{} within {:g} of one process      {:.1f} s",
                              bad == 0 ? "all" : fmt::format("{} of {}", all - bad, all),
                              options.plan.tolerance, record.duration_s));
  return lines;
}

/// The tables, in at most 80 columns; empty without results.
std::string table(const LossRecord& record, const LossOptions& options) {
  if (record.rows.empty()) return {};  // The run ended before the first result.
  std::string text = fmt::format("tutti loss {}  {}  {}\n  {}\n  {}\n", library_version_string(),
                                 describe_rows(options.plan.problem), describe_world(record),
                                 describe_data(options), describe_split(record, options));
  for (const std::string& note : record.notes) text += fmt::format("  note: {}\n", note);
  for (const auto& columns : {numbers, costs}) {
    const std::vector<TableRow> rows = table_rows(record, columns);
    text += "\n" + rows.front().heading();
    for (const TableRow& row : rows) text += row.line();
  }
  for (const std::string& line : legend(record, options)) text += fmt::format("  {}\n", line);
  return text;
}

std::string markdown(const LossRecord& record, const LossOptions& options) {
  std::string text = markdown_head(fmt::format("tutti loss {}: {}", library_version_string(),
                                               describe_rows(options.plan.problem)),
                                   record);
  text += fmt::format("\n{}; {}\n", describe_data(options), describe_split(record, options));
  if (record.rows.empty()) return text;
  std::vector<std::string> columns = numbers;
  columns.insert(columns.end(), costs.begin() + 1, costs.end());
  const std::vector<TableRow> rows = table_rows(record, columns);
  text += "\n" + rows.front().markdown_heading();
  for (const TableRow& row : rows) text += row.markdown_line();
  text += "\n";
  for (const std::string& line : legend(record, options)) text += fmt::format("* {}\n", line);
  return text;
}

}  // namespace

std::string describe_plan(const LossOptions& options, const RowLayout& layout) {
  return to_json(Fields::object([&](Fields& fields) { describe_config(fields, options, layout); }));
}

Report loss_report(const LossRecord& record, const LossOptions& options) {
  return {[&] { return describe_run(record, options); }, shared,
          [&] { return table(record, options); }, [&] { return markdown(record, options); }};
}

std::string loss_schema() {
  return json_schema("tutti/loss-run-1", "A run of tutti loss", describe_run({}, {}));
}

}  // namespace tutti::tool
