#include "report/record.hpp"

#include <utility>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <tutti/version.hpp>

#include "common/build.hpp"
#include "common/text.hpp"

namespace tutti::tool {

void describe(Fields& fields, const Summary& us) {
  fields("n", us.n, {.at_least = 1});
  fields("p50", us.p50);
  fields("min", us.min);
  fields("max", us.max);
}

Column milliseconds(std::string heading, const Summary& us) {
  return {std::move(heading), 9, fmt::format("{:.4g}", us.p50 / 1e3)};
}

void describe(Fields& fields, const FirstWrong& first) {
  fields("rank", first.rank, {.at_least = 0});
  fields("array", first.array, "out, or in for a modified input; of steps, the parameter");
  fields("index", first.index, "of the element; outside of the array for a guard byte");
  fields("expected", first.expected);
  fields("got", first.got);
}

std::string describe_wrong(const std::optional<std::int64_t>& wrong,
                           const std::optional<FirstWrong>& first) {
  std::string text = plural(wrong.value_or(0), "wrong element");
  if (first)
    text += fmt::format(", first: rank {} {}[{}] expected {} got {}", first->rank, first->array,
                        first->index, first->expected, first->got);
  return text;
}

void describe(Fields& fields, const Tool& tool) {
  fields("name", "tutti", {.constant = true});
  fields("version", tool.version);
  fields("git", git_version(), "git describe, or unknown");
  fields("build", fmt::format("{} {}", build_type(), compiler()), "build type and compiler");
}

void describe(Fields& fields, const RankInfo& info) {
  fields("rank", info.rank, {.at_least = 0});
  fields("host", info.host);
  fields("pid", info.pid);
  fields("device", info.device);
  fields("cpuset", info.cpuset);
  fields("model", info.model);
}

void describe(Fields& fields, const World& world) {
  fields("size", world.size, {.at_least = 1});
  fields("hosts", world.hosts, {.at_least = 1});
  fields("threads", world.threads, "the ranks are threads of one process");
  fields("cpus", world.cpus, "that the ranks of rank 0's host may use", {.at_least = 1});
  fields("oversubscribed", world.oversubscribed,
         "more ranks on a host than CPUs that they may use");
  fields("ranks", world.ranks);
}

void describe(Fields& fields, const BackendInfo& backend) {
  fields("name", backend.name);
  fields("version", backend.version);
  fields("chosen_because", backend.chosen_because);
  fields("transport", unless_empty(backend.transport), {.omitted = true});
}

void describe(Fields& fields, const RunRecord& record) {
  fields("schema_version", 1, {.constant = true});
  fields("tool", Tool{std::string(library_version_string())});
  fields("status", record.status);
  fields("error", unless_empty(record.error), "one line, for timeout and error", {.omitted = true});
  const auto started = std::chrono::system_clock::to_time_t(record.started);
  fields("started", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(started)),
         {.format = "date-time"});
  fields("duration_s", record.duration_s, {.at_least = 0});
  fields("argv", record.argv);
  fields("env", record.env,
         "allow-list only: TUTTI_* NCCL_* GLOO_* UCX_* FI_* CUDA_VISIBLE_DEVICES "
         "OMP_NUM_THREADS and --env-allow");
  fields("backend", record.backend);
  fields("world", record.world);
  fields("notes", record.notes);
}

std::string describe_world(const RunRecord& record) {
  return fmt::format("{} / {}  {}{}{}", plural(record.world.size, "rank"),
                     plural(record.world.hosts, "host"), record.backend.name,
                     record.backend.transport.empty() ? "" : " ", record.backend.transport);
}

std::string markdown_head(std::string_view title, const RunRecord& record) {
  std::string text = fmt::format("# {}: {}\n", title, describe_world(record));
  if (record.status != Status::ok) text += fmt::format("\n**{}**", name_of(record.status));
  if (!record.error.empty()) text += fmt::format(": {}", record.error);
  if (record.status != Status::ok) text += "\n";
  if (!record.notes.empty()) text += "\n";
  for (const std::string& note : record.notes) text += fmt::format("* {}\n", note);
  return text;
}

}  // namespace tutti::tool
