#include "step/record.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/text.hpp"

namespace tutti::tool {

std::optional<double> StepRow::bound_us() const {
  if (!compute_us) return std::nullopt;
  const double part = static_cast<double>(last_bucket_bytes) / static_cast<double>(bytes);
  return std::max(compute_us->p50, communication_us.p50) + part * communication_us.p50;
}

std::optional<double> StepRow::hidden() const {
  if (!compute_us || !overlap_us) return std::nullopt;
  return (communication_us.p50 + compute_us->p50 - overlap_us->p50) /
         std::min(communication_us.p50, compute_us->p50);
}

namespace {

/// A column with a number, or "-" if there is none.
Column column(std::string heading, int width, const std::optional<double>& number,
              std::string_view format) {
  return {std::move(heading), width,
          number ? fmt::vformat(format, fmt::make_format_args(*number)) : "-"};
}

Column times(std::string heading, const std::optional<Summary>& us) {
  return us ? milliseconds(std::move(heading), *us) : Column{std::move(heading), 10, "-"};
}

std::optional<double> per_second(const std::optional<Summary>& us) {
  return us ? std::optional(1e6 / us->p50) : std::nullopt;
}

std::optional<double> ratio(const std::optional<double>& a, const std::optional<double>& b) {
  return a && b ? std::optional(*a / *b) : std::nullopt;
}

std::optional<double> median_of(const std::optional<Summary>& us) {
  return us ? std::optional(us->p50) : std::nullopt;
}

/// Steps of one kind, and their rate.
void describe_steps(Fields& fields, const std::string& name, const std::optional<Summary>& us,
                    const std::string& heading, std::string_view text) {
  const auto rate = per_second(us);
  fields(name + "_us", us, text, {.column = times(heading + "\nms", us)});
  fields(name + "_steps_per_s", rate, {.column = column("\nsteps/s", 8, rate, "{:.4g}")});
}

}  // namespace

void describe(Fields& fields, const StepWrong& wrong) {
  fields("rank", wrong.rank, {.at_least = 0});
  fields("parameter", wrong.parameter);
  fields("index", wrong.index, "of the element in the gradient", {.at_least = 0});
  fields("expected", wrong.expected);
  fields("got", wrong.got);
}

void describe(Fields& fields, const StepRow& row) {
  fields("bucket_bytes", row.bucket_bytes,
         "the largest size of a bucket, unless one gradient is larger",
         {.at_least = 1, .column = {"bucket", 9, format_bytes(row.bucket_bytes)}});
  fields("first_bucket_bytes", row.first_bucket_bytes, "the largest size of the first bucket",
         {.at_least = 1});
  fields("buckets", row.buckets,
         {.at_least = 1, .column = {"buckets", 8, fmt::format("{}", row.buckets)}});
  fields("bytes", row.bytes, "of all buckets, alignment included", {.at_least = 0});
  fields("last_bucket_bytes", row.last_bucket_bytes, {.at_least = 0});
  fields("communication_us", row.communication_us, "a step without compute",
         {.column = milliseconds("comm\nms", row.communication_us)});
  const double gbps = static_cast<double>(row.bytes) / row.communication_us.p50 * 1e-3;
  fields("communication_gbps", gbps, "GB/s: bytes / communication_us.p50",
         {.at_least = 0, .column = column("comm\nGB/s", 9, gbps, "{:.3g}")});
  fields("communication_cpu", row.communication_cpu,
         "processors that a rank uses in a step without compute; of the rank that uses most",
         {.at_least = 0, .column = column("comm\ncpu", 8, 100 * row.communication_cpu, "{:.0f}%")});
  fields("compute_us", row.compute_us, "the compute loop of a step alone; null without one",
         {.column = times("compute\nms", row.compute_us)});
  describe_steps(fields, "overlap", row.overlap_us, "overlap",
                 "a step that marks gradients within the compute loop; null when not measured");
  describe_steps(fields, "no_overlap", row.no_overlap_us, "no overlap",
                 "a step that marks gradients after the compute loop; null when not measured");
  fields("hidden", row.hidden(),
         "(communication + compute - overlap) / the smaller of communication and compute",
         {.column =
              column("hidden", 8, row.hidden() ? std::optional(100 * *row.hidden()) : std::nullopt,
                     "{:.0f}%")});
  fields("bound_us", row.bound_us(),
         "max(compute, communication) + communication * last_bucket_bytes / bytes",
         {.column = column("bound\nms", 10, ratio(row.bound_us(), 1e3), "{:.4g}")});
  const auto over_bound = ratio(median_of(row.overlap_us), row.bound_us());
  fields("overlap_over_bound", over_bound,
         {.column = column("overlap\n/ bound", 9, over_bound, "{:.3f}")});
  fields("calls_us", row.calls_us, "an all_reduce of each gradient, in turn; null without --calls",
         {.column = times("calls\nms", row.calls_us)});
  const auto calls = ratio(median_of(row.calls_us), row.communication_us.p50);
  fields("calls_over_communication", calls,
         {.column = column("calls\n/ comm", 9, calls, "{:.3g}")});
  fields("wrong", row.wrong, "elements, on all ranks; null under --check none",
         {.at_least = 0,
          .column = {"check", 7,
                     !row.wrong        ? "-"
                     : *row.wrong == 0 ? "ok"
                                       : "BAD"}});
  fields("first_wrong", row.first_wrong);
}

std::string describe_wrong(const StepRow& row) {
  std::string text = plural(row.wrong.value_or(0), "wrong element");
  if (const auto& first = row.first_wrong)
    text += fmt::format(", first: rank {} {}[{}] expected {} got {}", first->rank, first->parameter,
                        first->index, first->expected, first->got);
  return text;
}

}  // namespace tutti::tool
