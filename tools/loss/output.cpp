#include "loss/output.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <tutti/version.hpp>

#include "bench/table.hpp"
#include "common/duration.hpp"
#include "common/text.hpp"

namespace tutti::tool {
namespace {

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json time_json(const LossTime& time) {
  return {{"n", time.n}, {"p50", time.p50}, {"min", time.min}, {"max", time.max}};
}

Json row_json(const LossRow& row) {
  Json json;
  json["loss"] = name_of(row.kind);
  json["temperature"] = or_null(row.temperature);
  json["value"] = row.loss;
  json["gradient_norm"] = row.gradient_norm;
  json["valid_classes"] = or_null(row.valid_classes);
  json["queued"] = or_null(row.queued);
  json["difference"] = {{"loss", row.loss_difference}, {"gradient", row.gradient_difference}};
  json["wrong"] = row.wrong;
  json["worst"] = nullptr;
  if (row.worst)
    json["worst"] = {{"rank", row.worst->rank},         {"call", row.worst->call},
                     {"array", row.worst->array},       {"index", row.worst->index},
                     {"expected", row.worst->expected}, {"got", row.worst->got}};
  json["time_us"] = time_json(row.time_us);
  json["time_us_one_process"] = time_json(row.time_us_one_process);
  json["evaluations"] = row.evaluations;
  json["evaluations_one_process"] = row.evaluations_one_process;
  json["peak_extra_bytes"] = or_null(row.peak_extra_bytes);
  json["peak_extra_bytes_one_process"] = or_null(row.peak_extra_bytes_one_process);
  json["pair_loop"] = nullptr;
  if (row.pairs)
    json["pair_loop"] = {{"time_us", seconds(row.pairs->time) * 1e6},
                         {"estimated", row.pairs->estimated},
                         {"speedup", *row.speedup()}};
  return json;
}

std::string bytes_or_dash(const std::optional<std::int64_t>& bytes) {
  return bytes ? format_bytes(*bytes) : "-";
}

std::string speedup(const LossRow& row) {
  if (!row.pairs) return "-";
  const double factor = *row.speedup();
  return fmt::format("{}{}", row.pairs->estimated ? "~" : "",
                     factor < 10 ? fmt::format("{:.2g}", factor) : fmt::format("{:.0f}", factor));
}

std::string plural(std::int64_t count, std::string_view one, std::string_view many) {
  return fmt::format("{} {}", count, count == 1 ? one : many);
}

std::string head(const LossRecord& record) {
  const LossProblem& problem = record.plan.problem;
  std::string text =
      fmt::format("tutti loss {}  {}  {}  {}  {}\n", library_version_string(),
                  plural(problem.rows, "row", "rows"), plural(problem.classes, "class", "classes"),
                  name_of(problem.dtype), describe_world(record));
  text += fmt::format("  {:g}% positive, {:g}% ignored, seed {}, {} compared",
                      100 * problem.positive_rate, 100 * problem.ignore_rate, problem.seed,
                      plural(record.plan.calls, "call", "calls"));
  if (problem.queue > 0) text += fmt::format(", queue {}", problem.queue);
  text += fmt::format("\n  rows of the ranks: {} {}\n", name_of(record.split),
                      to_string(record.layout));
  return text;
}

std::string milliseconds(const LossTime& time) {
  return fmt::format("{:.4g}", time.p50 / 1e3);
}

std::string numbers(const LossRecord& record) {
  std::string text = fmt::format("\n{:<20}{:>12}{:>12}{:>14}{:>14}{:>7}\n", "  loss", "value",
                                 "|gradient|", "loss differs", "grad differs", "check");
  for (const LossRow& row : record.rows)
    text += fmt::format("  {:<18}{:>12.6g}{:>12.5g}{:>14.2g}{:>14.2g}{:>7}\n", name_of(row.kind),
                        row.loss, row.gradient_norm, row.loss_difference, row.gradient_difference,
                        row.wrong == 0 ? "ok" : "BAD");
  return text;
}

std::string costs(const LossRecord& record) {
  const std::string ranks = plural(record.world.size, "rank", "ranks");
  std::string text = fmt::format("\n{:<20}{:>10}{:>10}{:>10}{:>11}{:>11}{:>8}\n", "", "ms", "ms",
                                 "most", "memory", "memory", "x over");
  text += fmt::format("{:<20}{:>10}{:>10}{:>10}{:>11}{:>11}{:>8}\n", "  loss", "1 process", ranks,
                      "evals", "1 process", ranks, "pairs");
  bool estimated = false;
  for (const LossRow& row : record.rows) {
    estimated = estimated || (row.pairs && row.pairs->estimated);
    text += fmt::format("  {:<18}{:>10}{:>10}{:>10.3g}{:>11}{:>11}{:>8}\n", name_of(row.kind),
                        milliseconds(row.time_us_one_process), milliseconds(row.time_us),
                        static_cast<double>(std::ranges::max(row.evaluations)),
                        bytes_or_dash(row.peak_extra_bytes_one_process),
                        bytes_or_dash(row.peak_extra_bytes), speedup(row));
  }
  if (estimated) text += "  ~  the loop of pairs was timed on a part of its anchors\n";
  if (record.world.threads && record.world.size > 1)
    text += "  the ranks are threads: their memory is that of all together\n";
  return text;
}

}  // namespace

Json loss_config(const LossRecord& record) {
  const LossProblem& problem = record.plan.problem;
  const auto counts = record.layout.counts();
  Json losses = Json::array();
  for (const LossKind kind : record.kinds) losses.push_back(name_of(kind));
  return {{"losses", std::move(losses)},
          {"rows", problem.rows},
          {"classes", problem.classes},
          {"pos_rate", problem.positive_rate},
          {"ignore_rate", problem.ignore_rate},
          {"dtype", name_of(problem.dtype)},
          {"seed", problem.seed},
          {"temperature", or_null(problem.temperature)},
          {"quantile", problem.quantile},
          {"budget", problem.budget},
          {"surrogate", problem.pairwise ? "pairwise" : "trapezoid"},
          {"gamma", problem.gamma},
          {"queue", problem.queue},
          {"threads", problem.threads},
          {"calls", record.plan.calls},
          {"rounds", record.plan.rounds},
          {"tolerance", record.plan.tolerance},
          {"split", name_of(record.split)},
          {"layout", std::vector<std::int64_t>(counts.begin(), counts.end())},
          {"timeout_s", seconds(record.timeout)}};
}

std::string loss_json(const LossRecord& record) {
  // What every run has: the rest is that of this command.
  BenchRecord head;
  static_cast<RunRecord&>(head) = record;
  Json json = to_json(head, BenchOptions());
  json["config"] = loss_config(record);
  json["results"] = Json::array();
  for (const LossRow& row : record.rows) json["results"].push_back(row_json(row));
  json.erase("fit");
  return dump(json, 2) + "\n";
}

std::string loss_table(const LossRecord& record) {
  if (record.rows.empty()) return {};  // It ended before there was anything to show.
  std::string text = head(record);
  for (const std::string& note : record.notes) text += fmt::format("  note: {}\n", note);
  text += numbers(record) + costs(record);
  const auto bad =
      std::ranges::count_if(record.rows, [](const LossRow& row) { return row.wrong != 0; });
  text += fmt::format(
      "  {} within {:g} of one process      {:.1f} s\n",
      bad == 0 ? "all"
               : fmt::format("{} of {}", std::ssize(record.rows) - bad, std::ssize(record.rows)),
      record.plan.tolerance, record.duration_s);
  return text;
}

std::string describe_wrong(const LossRow& row) {
  std::string text = fmt::format("{} from that of one process",
                                 plural(row.wrong, "number differs", "numbers differ"));
  if (const auto& worst = row.worst)
    text += fmt::format(", most: rank {} call {} {}[{}] expected {} got {}", worst->rank,
                        worst->call, worst->array, worst->index, worst->expected, worst->got);
  return text;
}

}  // namespace tutti::tool
