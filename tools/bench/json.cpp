#include "bench/json.hpp"

#include <ctime>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <tutti/version.hpp>

#include "common/build.hpp"
#include "common/duration.hpp"
#include "common/environment.hpp"

namespace tutti::tool {
namespace {

/// The optional's value as text, or null.
template <typename T>
Json name_or_null(const std::optional<T>& value) {
  return value ? Json(name_of(*value)) : Json(nullptr);
}
template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}
template <typename T>
Json or_auto(const std::optional<T>& value) {
  return value ? Json(*value) : Json("auto");
}

std::string_view name_of_mode(Mode mode) {
  return mode == Mode::latency ? "latency" : "throughput";
}
std::string_view name_of_check(Check check) {
  return check == Check::first ? "first" : check == Check::all ? "all" : "none";
}
std::string_view name_of_agg(RankAgg agg) {
  switch (agg) {
    case RankAgg::max:
      return "max";
    case RankAgg::mean:
      return "mean";
    case RankAgg::min:
      return "min";
    case RankAgg::rank0:
      break;
  }
  return "rank0";
}

std::string utc(std::chrono::system_clock::time_point when) {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(when)));
}

void add_key(Json& json, const Key& key) {
  json["coll"] = key.coll;
  json["dtype"] = name_or_null(key.dtype);
  json["op"] = name_or_null(key.op);
  json["place"] = name_or_null(key.place);
  json["root"] = or_null(key.root);
  json["layout"] = key.counts.empty() ? Json(nullptr) : Json(key.counts);
}

Json world_json(const World& world) {
  Json ranks = Json::array();
  for (const RankInfo& rank : world.ranks)
    ranks.push_back({{"rank", rank.rank},
                     {"host", rank.host},
                     {"pid", rank.pid},
                     {"device", rank.device},
                     {"cpuset", rank.cpuset},
                     {"model", rank.model}});
  return {{"size", world.size},
          {"hosts", world.hosts},
          {"threads", world.threads},
          {"cpus", world.cpus},
          {"oversubscribed", world.oversubscribed},
          {"ranks", std::move(ranks)}};
}

Json config_json(const BenchOptions& options) {
  const Timing& timing = options.timing;
  const Request& request = options.request;
  Json counts = Json::array();
  for (const Counts& each : request.counts.values) counts.push_back(each.name());
  return {{"units", "GB=1e9,time=us"},
          {"mode", name_of_mode(timing.mode)},
          {"min_time_s", seconds(timing.min_time)},
          {"iters", or_auto(timing.iters)},
          {"warmup", or_auto(timing.warmup)},
          {"max_total_s", seconds(options.max_total)},
          {"timeout_s", seconds(options.timeout)},
          {"counts", std::move(counts)},
          {"order", request.order == Order::size ? "size" : "random"},
          {"cold", options.cold},
          {"rank_agg", name_of_agg(timing.rank_agg)},
          {"percentiles", timing.percentiles},
          {"check", name_of_check(timing.check)},
          {"seed", timing.seed},
          {"samples", timing.keep_samples ? "all" : "none"}};
}

Json row_json(const Row& row, bool with_samples) {
  Json time{{"n", row.time_us.n}, {"mean", row.time_us.mean}, {"min", row.time_us.min}};
  for (const auto& [p, us] : row.percentiles_us) time[fmt::format("p{:g}", p)] = us;
  time["max"] = row.time_us.max;
  time["stdev"] = row.time_us.stdev;

  Json json;
  add_key(json, row.key);
  json["counts"] = row.counts.empty() ? Json(nullptr) : Json(row.counts);
  json["bytes"] = row.bytes;
  json["count"] = row.count;
  json["ranks"] = row.ranks;
  json["time_us"] = std::move(time);
  json["time_us_rank_mean"] = row.rank_mean_us;
  json["slowest_rank"] = row.slowest_rank;
  json["algbw"] = or_null(row.algbw);
  json["busbw"] = or_null(row.busbw);
  json["pct_peak"] = nullptr;
  json["wrong"] = or_null(row.wrong);
  json["first_wrong"] = nullptr;
  if (row.first_wrong)
    json["first_wrong"] = {{"rank", row.first_wrong->rank},
                           {"array", row.first_wrong->array},
                           {"index", row.first_wrong->index},
                           {"expected", row.first_wrong->expected},
                           {"got", row.first_wrong->got}};
  json["warmup_calls"] = row.warmup_calls;
  json["calls_per_sample"] = row.calls_per_sample;
  Json flags = Json::array();
  for (const Flag flag : row.flags) flags.push_back(name_of(flag));
  json["flags"] = std::move(flags);
  if (with_samples) json["samples_us"] = row.samples_us;
  return json;
}

}  // namespace

Json to_json(const BenchRecord& record, const BenchOptions& options) {
  Json json;
  json["schema_version"] = 1;
  json["tool"] = {{"name", "tutti"},
                  {"version", library_version_string()},
                  {"git", git_version()},
                  {"build", fmt::format("{} {}", build_type(), compiler())}};
  json["status"] = name_of(record.status);
  if (!record.error.empty()) json["error"] = record.error;
  json["started"] = utc(record.started);
  json["duration_s"] = record.duration_s;
  json["argv"] = record.argv;
  json["env"] = allowed_environment(options.env_allow);
  json["backend"] = {{"name", record.backend.name},
                     {"version", record.backend.version},
                     {"chosen_because", record.backend.chosen_because}};
  if (!record.backend.transport.empty()) json["backend"]["transport"] = record.backend.transport;
  json["world"] = world_json(record.world);
  json["config"] = config_json(options);
  json["notes"] = record.notes;
  json["results"] = Json::array();
  for (const Row& row : record.rows)
    json["results"].push_back(row_json(row, options.timing.keep_samples));
  json["fit"] = Json::array();
  for (const KeyedFit& fit : record.fits) {
    Json entry;
    add_key(entry, fit.key);
    entry["alpha_us"] = fit.fit.alpha_us;
    entry["beta_GBps"] = fit.fit.beta_gbps;
    entry["n_half_bytes"] = fit.fit.n_half_bytes;
    entry["r2"] = fit.fit.r2;
    json["fit"].push_back(std::move(entry));
  }
  return json;
}

std::string dump(const Json& json, int indent) {
  // Arguments and host names may hold any bytes.
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace tutti::tool
