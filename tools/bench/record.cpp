#include "bench/record.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/text.hpp"

namespace tutti::tool {

namespace {

template <typename T>
std::optional<std::string> name_or_nothing(const std::optional<T>& value) {
  if (!value) return std::nullopt;
  return std::string(tutti::name_of(*value));
}

/// "ok", "BAD", or "-" when not checked.
std::string check_word(const Row& row) {
  return !row.wrong ? "-" : *row.wrong == 0 ? "ok" : "BAD";
}

/// "123456", "1.23M".
std::string format_rate(double per_second) {
  return per_second < 1e6 ? fmt::format("{:.0f}", per_second)
                          : fmt::format("{:.2f}M", per_second * 1e-6);
}

std::string flag_names(const Row& row) {
  std::vector<std::string_view> names;
  for (const Flag flag : row.flags) names.push_back(name_of(flag));
  return fmt::format("{}", fmt::join(names, " "));
}

void describe_key(Fields& fields, const Key& key) {
  fields("coll", key.coll);
  fields("dtype", name_or_nothing(key.dtype), "null for barrier");
  fields("op", name_or_nothing(key.op), "null where nothing is reduced");
  fields("place", key.place, "null for barrier");
  fields("root", key.root, "null where there is none");
  fields("layout", unless_empty(key.counts),
         "how S is cut into blocks, as --counts has it; null where it is not");
}

void describe_times(Fields& fields, const Row& row) {
  const Summary& us = row.time_us;
  const auto column = [](std::string name, double value) {
    return About{.column = {std::move(name), 11, format_us(value)}};
  };
  fields("n", us.n, {.at_least = 1, .column = {"iters", 8, fmt::format("{}", us.n), "iterations"}});
  fields("mean", us.mean);
  fields("min", us.min);
  for (const auto& [p, value] : row.percentiles_us)
    fields(fmt::format("p{:g}", p), value, column(fmt::format("p{:g} µs", p), value));
  fields.more_numbers("^p[0-9.]+$");
  fields("max", us.max, column("max µs", us.max));
  fields("stdev", us.stdev);
}

}  // namespace

void describe(Fields& fields, const Overlap& overlap) {
  const auto column = [](const char* name, double us) {
    return About{.column = {name, 12, format_us(us)}};
  };
  fields("overall_us", overlap.overall_us, "of a call with compute between its start and its end",
         column("overall µs", overlap.overall_us));
  fields("compute_us", overlap.compute_us, "of the compute alone",
         column("compute µs", overlap.compute_us));
  fields("comm_us", overlap.comm_us, "of the call alone", column("comm µs", overlap.comm_us));
  fields("percent", overlap.percent(), "100 (1 - (overall - compute) / comm), from 0 to 100",
         {.column = {"overlap", 9, fmt::format("{:.1f}%", overlap.percent())}});
}

void describe(Fields& fields, const Row& row) {
  describe_key(fields, row.key);
  fields("counts", unless_empty(row.counts), "elements of each rank's block; null when all alike",
         {.at_least = 0});
  const std::string size = row.algbw ? format_bytes(row.bytes) : "-";
  fields("bytes", row.bytes, "S of tutti bench --help-sizes",
         {.at_least = 0, .column = {"size", 10, size}});
  fields("count", row.count, "bytes in elements", {.at_least = 0});
  fields("ranks", row.ranks, {.at_least = 1});
  fields(
      "time_us", [&](Fields& times) { describe_times(times, row); },
      "of the iterations, each combined over the ranks by config.rank_agg");
  fields("time_us_rank_mean", row.rank_mean_us);
  fields("slowest_rank", row.slowest_rank, {.at_least = 0});
  fields("algbw", row.algbw, "GB/s, from the mean over ranks and iterations; null for barrier",
         {.column = {"algbw", 8, format_gbps(row.algbw), "algbw GB/s"}});
  fields("busbw", row.busbw, "GB/s; null for barrier, and where no byte has to cross a link",
         {.column = {"busbw", 8, format_gbps(row.busbw), "busbw GB/s"}});
  fields("messages_per_s", row.messages_per_s, "of all pairs together; null for collectives",
         {.column = row.messages_per_s ? Column{"msg/s", 8, format_rate(*row.messages_per_s)}
                                       : Column{}});
  fields("wrong", row.wrong, "wrong elements on all ranks; null for barrier and with --check none",
         {.at_least = 0, .column = {"chk", 5, check_word(row), "check"}});
  fields("first_wrong", row.first_wrong);
  fields("warmup_calls", row.warmup_calls, {.at_least = 0});
  fields("calls_per_sample", row.calls_per_sample,
         "a sample is their mean: calls queued back to back on a device, those of --aggregate, and "
         "messages between a pair",
         {.at_least = 1});
  fields("overlap", row.overlap, "with --overlap", {.omitted = true});
  fields("flags", row.flags, {.column = {"flags", -12, flag_names(row)}});
  fields("block_p50_us", row.block_p50_us,
         "medians of consecutive blocks of iterations, at most 20, for tutti compare");
  fields("samples_us", unless_empty(row.samples_us), "with --samples all", {.omitted = true});
}

void describe(Fields& fields, const KeyedFit& fit) {
  describe_key(fields, fit.key);
  fields("alpha_us", fit.fit.alpha_us, {.at_least = 0});
  fields("beta_GBps", fit.fit.beta_gbps, {.above = 0});
  fields("n_half_bytes", fit.fit.n_half_bytes, {.at_least = 0});
  fields("r2", fit.fit.r2);
}

double Overlap::percent() const noexcept {
  return comm_us > 0 ? std::clamp(100 * (1 - (overall_us - compute_us) / comm_us), 0.0, 100.0) : 0;
}

std::optional<double> average_busbw(std::span<const Row> rows) {
  std::vector<double> all;
  for (const Row& row : rows)
    if (row.busbw) all.push_back(*row.busbw);
  return all.empty() ? std::nullopt : std::optional(mean(all));
}

bool Row::has(Flag flag) const noexcept {
  return std::find(flags.begin(), flags.end(), flag) != flags.end();
}

std::string title(const Key& key) {
  std::string text = key.coll;
  if (key.dtype) text += fmt::format("  {}", tutti::name_of(*key.dtype));
  if (key.op) text += fmt::format(" {}", tutti::name_of(*key.op));
  if (key.place) text += *key.place == PlaceMode::out ? "  out-of-place" : "  in-place";
  if (key.root) text += fmt::format("  root {}", *key.root);
  if (!key.counts.empty() && key.counts != "even") text += fmt::format("  counts {}", key.counts);
  return text;
}

}  // namespace tutti::tool
