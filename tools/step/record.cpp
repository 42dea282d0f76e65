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
  return us ? milliseconds(std::move(heading), *us) : Column{std::move(heading), 9, "-"};
}

}  // namespace

void describe(Fields& fields, const StepRow& row) {
  fields("bucket_bytes", row.bucket_bytes,
         "the largest size of a bucket, unless one gradient is larger",
         {.at_least = 1, .column = {"bucket", 9, format_bytes(row.bucket_bytes)}});
  fields("buckets", row.buckets,
         {.at_least = 1, .column = {"buckets", 8, fmt::format("{}", row.buckets)}});
  fields("bytes", row.bytes, "of all buckets, alignment included", {.at_least = 0});
  fields("last_bucket_bytes", row.last_bucket_bytes, {.at_least = 0});
  fields("communication_us", row.communication_us, "a step without compute",
         {.column = milliseconds("comm\nms", row.communication_us)});
  const double gbps = static_cast<double>(row.bytes) / row.communication_us.p50 * 1e-3;
  fields("communication_gbps", gbps, "GB/s: bytes / communication_us.p50",
         {.at_least = 0, .column = column("comm\nGB/s", 7, gbps, "{:.3g}")});
  fields("communication_cpu", row.communication_cpu,
         "processors that a rank uses in a step without compute; of the rank that uses most",
         {.at_least = 0, .column = column("comm\ncpu", 6, 100 * row.communication_cpu, "{:.0f}%")});
  fields("compute_us", row.compute_us, "the compute loop of a step alone; null without one",
         {.column = times("compute\nms", row.compute_us)});
  fields("overlap_us", row.overlap_us,
         "a step that marks gradients within the compute loop; null without one",
         {.column = times("overlap\nms", row.overlap_us)});
  fields("no_overlap_us", row.no_overlap_us,
         "a step that marks gradients after the compute loop; null without one",
         {.column = times("serial\nms", row.no_overlap_us)});
  fields("hidden", row.hidden(),
         "(communication + compute - overlap) / the smaller of communication and compute",
         {.column =
              column("hidden", 8, row.hidden() ? std::optional(100 * *row.hidden()) : std::nullopt,
                     "{:.0f}%")});
  fields("bound_us", row.bound_us(),
         "max(compute, communication) + communication * last_bucket_bytes / bytes",
         {.at_least = 0});
  const auto bound = row.bound_us();
  const auto over_bound =
      bound && row.overlap_us ? std::optional(row.overlap_us->p50 / *bound) : std::nullopt;
  fields("overlap_over_bound", over_bound);
  fields("calls_us", row.calls_us, "an all_reduce of each gradient, in turn; null without --calls",
         {.column = times("calls\nms", row.calls_us)});
  fields("wrong", row.wrong, "elements, on all ranks; null under --check none",
         {.at_least = 0,
          .column = {"check", 6,
                     !row.wrong        ? "-"
                     : *row.wrong == 0 ? "ok"
                                       : "BAD"}});
  fields("first_wrong", row.first_wrong);
}

}  // namespace tutti::tool
