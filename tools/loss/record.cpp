#include "loss/record.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "common/duration.hpp"
#include "common/text.hpp"

namespace tutti::tool {

std::optional<double> LossRow::speedup() const {
  if (!pairs) return std::nullopt;
  return std::chrono::duration<double, std::micro>(pairs->time).count() / time_us_one_process.p50;
}

namespace {

/// The number; empty if it is not finite.
std::optional<double> finite(double number) {
  return std::isfinite(number) ? std::optional(number) : std::nullopt;
}

std::string bytes_or_dash(const std::optional<std::int64_t>& bytes) {
  return bytes ? format_bytes(*bytes) : "-";
}

/// "~1230" if estimated.
std::string speedup_text(const LossRow& row) {
  if (!row.pairs) return "-";
  const double factor = *row.speedup();
  return fmt::format("{}{}", row.pairs->estimated ? "~" : "",
                     factor < 10 ? fmt::format("{:.2g}", factor) : fmt::format("{:.0f}", factor));
}

/// The plain loop over pairs of rows.
struct PairLoopTime {
  double time_us = 0;
  bool estimated = false;
  double speedup = 0;
};

void describe(Fields& fields, const PairLoopTime& loop) {
  fields("time_us", loop.time_us, {.at_least = 0});
  fields("estimated", loop.estimated, "from a part of the anchors: all would take over a second");
  fields("speedup", loop.speedup, "of one process over the loop", {.at_least = 0});
}

std::optional<PairLoopTime> pair_loop(const LossRow& row) {
  if (!row.pairs) return std::nullopt;
  return PairLoopTime{seconds(row.pairs->time) * 1e6, row.pairs->estimated, *row.speedup()};
}

}  // namespace

void describe(Fields& fields, const LossDifferences& of) {
  fields("loss", finite(of.loss), "relative to the loss, or to 1 where that is more",
         {.at_least = 0, .column = {"loss differs", 14, fmt::format("{:.2g}", of.loss)}});
  fields("gradient", finite(of.gradient), "relative to the largest element",
         {.at_least = 0, .column = {"grad differs", 14, fmt::format("{:.2g}", of.gradient)}});
}

void describe(Fields& fields, const LossMismatch& worst) {
  fields("rank", worst.rank, {.at_least = 0});
  fields("call", worst.call, {.at_least = 0});
  fields("array", worst.array);
  fields("index", worst.index, "of the element in [rows, classes]", {.at_least = 0});
  fields("expected", worst.expected);
  fields("got", worst.got);
}

void describe(Fields& fields, const LossRow& row) {
  const std::string ranks = plural(std::ssize(row.evaluations), "rank");
  const std::uint64_t most = row.evaluations.empty() ? 0 : std::ranges::max(row.evaluations);
  fields("loss", row.kind, {.column = {"  loss", -20, fmt::format("  {}", name_of(row.kind))}});
  fields("temperature", row.temperature, "null where the loss has none");
  fields("value", finite(row.loss), "of the last compared call; null when not finite",
         {.column = {"value", 12, fmt::format("{:.6g}", row.loss)}});
  fields("gradient_norm", finite(row.gradient_norm), "over the rows of all ranks, of the same call",
         {.column = {"|gradient|", 12, fmt::format("{:.5g}", row.gradient_norm), "gradient norm"}});
  fields("valid_classes", row.valid_classes, "null where the loss has none", {.at_least = 0});
  fields("queued", row.queued,
         "rows in the queue after the compared calls; null where the loss has none",
         {.at_least = 0});
  fields("difference", row.difference,
         "the largest from one process over ranks and calls; null when not finite");
  fields("wrong", row.difference.wrong,
         "losses and gradient elements beyond the tolerance, on all ranks",
         {.at_least = 0, .column = {"check", 7, row.difference.wrong == 0 ? "ok" : "BAD"}});
  fields("worst", row.difference.worst);
  fields("time_us", row.time_us, "of the ranks together; of a round the slowest rank's",
         {.column = milliseconds("ms\n" + ranks, row.time_us)});
  fields("time_us_one_process", row.time_us_one_process,
         {.column = milliseconds("ms\n1 process", row.time_us_one_process)});
  fields("evaluations", row.evaluations,
         "of each rank in a call: values of the sigmoid of pairs, or of series for them",
         {.at_least = 0,
          .column = {"most\nevals", 10, fmt::format("{:.3g}", static_cast<double>(most))}});
  fields("evaluations_one_process", row.evaluations_one_process, {.at_least = 0});
  fields("peak_extra_bytes", row.peak_extra_bytes,
         "resident memory of the process that took most during a call; of all ranks together "
         "where they are threads; null when unknown",
         {.at_least = 0, .column = {"memory\n" + ranks, 11, bytes_or_dash(row.peak_extra_bytes)}});
  fields("peak_extra_bytes_one_process", row.peak_extra_bytes_one_process,
         {.at_least = 0,
          .column = {"memory\n1 process", 11, bytes_or_dash(row.peak_extra_bytes_one_process)}});
  fields("pair_loop", pair_loop(row),
         "the plain loop over pairs of rows on one thread; null for losses that are not of pairs",
         {.column = {"x over\npairs", 8, speedup_text(row)}});
}

std::string describe_wrong(const LossRow& row) {
  std::string text =
      fmt::format("{} those of one process",
                  plural(row.difference.wrong, "number differs from", "numbers differ from"));
  if (const auto& worst = row.difference.worst)
    text += fmt::format(", the largest difference: rank {} call {} {}[{}] expected {} got {}",
                        worst->rank, worst->call, worst->array, worst->index, worst->expected,
                        worst->got);
  return text;
}

}  // namespace tutti::tool
