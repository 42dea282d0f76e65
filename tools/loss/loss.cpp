#include "loss/loss.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <tutti/backend/backend.hpp>
#include <tutti/version.hpp>

#include "common/duration.hpp"
#include "common/host.hpp"
#include "common/text.hpp"
#include "loss/output.hpp"
#include "loss/record.hpp"
#include "run/control.hpp"
#include "run/ending.hpp"
#include "run/hang_report.hpp"
#include "run/meet.hpp"
#include "run/source.hpp"

namespace tutti::tool {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

/// The other ranks wait for one that computes what all of them compute together later.
constexpr std::chrono::hours longest_alone{1};

/// Without -n the ranks are a launcher's; then "auto" is a backend between processes.
bool under_launcher(const LossOptions& options) {
  try {
    return (options.environment ? options.environment->detect() : VariablesEnvironment().detect())
        .has_value();
  } catch (const Error&) {
    return true;  // find_ranks() says what is wrong with it.
  }
}

BackendChoice choose(const LossOptions& options) {
  try {
    return choose_backend(options.backend, Device{}, !under_launcher(options));
  } catch (const Error& error) {
    const bool typo = error.code() == Errc::invalid_argument;
    throw Failure(typo ? Exit::usage : Exit::unavailable,
                  fmt::format("--backend {}: {}", options.backend, error.message()));
  }
}

RankSource find_threads(const LossOptions& options, const BackendChoice& backend) {
  RankSource source = find_ranks(options, backend);
  // One process is enough to compare numbers: -n makes threads of every backend.
  if (source.kind == RankSource::Kind::launches) source.kind = RankSource::Kind::threads;
  return source;
}

/// Logits, targets, a gradient for each call that is compared, and the pool of every rank in
/// double.
void check_memory(const LossPlan& plan, int ranks, std::int64_t free_bytes) {
  const LossProblem& problem = plan.problem;
  const auto width = static_cast<double>(size_of(problem.dtype));
  const double elements = static_cast<double>(problem.rows) * static_cast<double>(problem.classes);
  const double needed = elements * (width * static_cast<double>(2 + plan.calls) +
                                    static_cast<double>(sizeof(double)) * ranks);
  if (needed > static_cast<double>(free_bytes))
    refuse("--rows {} --classes {}: needs {:.1f} GB, and {} are free; use fewer", problem.rows,
           problem.classes, needed / 1e9, format_bytes(free_bytes));
}

// What a rank tells rank 0. A number that is not finite travels as null.

double number(const Json& json) {
  return json.is_null() ? std::numeric_limits<double>::infinity() : json.get<double>();
}

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

std::string to_text(const OfRank& found) {
  const LossComparison& comparison = found.comparison;
  Json json{{"loss_difference", comparison.loss_difference()},
            {"gradient_difference", comparison.gradient_difference()},
            {"wrong", comparison.wrong()},
            {"worst", nullptr},
            {"gradient_squares", found.gradient_squares},
            {"samples_us", found.cost.samples_us},
            {"evaluations", found.cost.evaluations},
            {"peak", or_null(found.cost.peak_extra_bytes)}};
  if (const auto& worst = comparison.worst())
    json["worst"] = {{"rank", worst->rank},         {"call", worst->call},
                     {"array", worst->array},       {"index", worst->index},
                     {"expected", worst->expected}, {"got", worst->got}};
  return json.dump();
}

/// Of all ranks together.
LossRow make_row(LossKind kind, const OneProcess& alone, double loss,
                 const std::vector<std::string>& of_ranks) {
  LossRow row;
  row.kind = kind;
  row.temperature = alone.temperature;
  const losses::LossResult& last = alone.calls.back();
  if (is_ranking(kind)) row.valid_classes = std::ranges::count(last.valid, std::uint8_t{1});
  row.queued = alone.queued;
  row.loss = loss;
  row.time_us_one_process = loss_time(alone.cost.samples_us);
  row.evaluations_one_process = alone.cost.evaluations;
  row.peak_extra_bytes_one_process = alone.cost.peak_extra_bytes;
  if (row.valid_classes != 0) row.pairs = alone.pairs;
  double gradient_squares = 0;
  double worst_difference = -1;
  std::vector<double> slowest_us;
  for (const std::string& text : of_ranks) {
    const Json json = Json::parse(text);
    row.evaluations.push_back(json.at("evaluations"));
    row.loss_difference = std::max(row.loss_difference, number(json.at("loss_difference")));
    row.gradient_difference =
        std::max(row.gradient_difference, number(json.at("gradient_difference")));
    row.wrong += json.at("wrong").get<std::int64_t>();
    const double difference =
        std::max(number(json.at("loss_difference")), number(json.at("gradient_difference")));
    if (const Json& worst = json.at("worst"); !worst.is_null() && difference > worst_difference) {
      row.worst = {worst.at("rank"),  worst.at("call"),     worst.at("array"),
                   worst.at("index"), worst.at("expected"), worst.at("got")};
      worst_difference = difference;
    }
    gradient_squares += number(json.at("gradient_squares"));
    if (const Json& peak = json.at("peak"); !peak.is_null())
      row.peak_extra_bytes = std::max(row.peak_extra_bytes.value_or(0), peak.get<std::int64_t>());
    const auto samples = json.at("samples_us").get<std::vector<double>>();
    slowest_us.resize(samples.size());
    std::ranges::transform(slowest_us, samples, slowest_us.begin(),
                           [](double a, double b) { return std::max(a, b); });
  }
  row.gradient_norm = std::sqrt(gradient_squares);
  row.time_us = loss_time(slowest_us);
  return row;
}

/// The ranks of this process compare with the same numbers of one process.
struct Shared {
  std::vector<OneProcess> alone{};
};

/// The whole run, on one rank.
void run_losses(Rank& rank, const LossOptions& options, bool threads, Shared& shared,
                LossRecord& record) {
  ProcessGroup& group = rank.group;
  const bool first = group.rank() == 0;
  Control control(rank.store, group.rank(), group.size(), options.timeout);
  const auto wait_for_rank_0 = [&group] { group.barrier({.deadline = longest_alone}); };

  World world = meet(rank, control, threads, loss_config(record).dump());
  if (first) record.world = std::move(world);
  for (std::size_t i = 0; i < options.kinds.size(); ++i) {
    const LossKind kind = options.kinds[i];
    rank.position.what = name_of(kind);
    rank.position.bytes = 0;
    rank.position.iteration = -1;
    OneProcess& alone = shared.alone[i];
    if (first) alone = compute_alone(kind, options.plan, true);
    wait_for_rank_0();
    if (!first && !threads) alone = compute_alone(kind, options.plan, false);
    wait_for_rank_0();
    const OfRank found =
        compute_together(rank, kind, options.plan, record.layout, alone, first || !threads);
    group.barrier();  // Now nobody waits in vain for the word of another.
    const std::vector<std::string> of_ranks = control.collect(to_text(found));
    if (first) record.rows.push_back(make_row(kind, alone, found.loss, of_ranks));
    if (first || !threads) alone = {};
  }
}

/// Prints what went wrong and sets the record's status.
Exit judge(const std::vector<Outcome>& outcomes, LossRecord& record, std::FILE* err) {
  RunRecord& run = record;
  if (const Outcome* cause = first_cause(outcomes)) {
    const Exit code = exit_code_of(*cause);
    run.error = error_text(*cause);
    run.status = code == Exit::timeout ? Status::timeout : Status::error;
    if (code == Exit::timeout)
      fmt::print(err, "{}", hang_report(outcomes, run.world, record.timeout));
    else
      fmt::print(err, "error: {}\n{}", run.error, silent_ranks(outcomes, run.world));
    return code;
  }
  for (const LossRow& row : record.rows) {
    if (row.valid_classes == 0)
      run.notes.push_back(
          fmt::format("{}: no class is valid in the last call, so there is nothing to compare",
                      name_of(row.kind)));
    const std::int64_t queue = record.plan.problem.queue;
    if (row.queued && *row.queued < queue)
      run.notes.push_back(fmt::format("{}: after {} calls its queue has {} of {} rows",
                                      name_of(row.kind), record.plan.calls, *row.queued, queue));
    if (row.wrong == 0) continue;
    fmt::print(err, "error: {}: {}\n", name_of(row.kind), describe_wrong(row));
    run.status = Status::wrong_data;
  }
  return run.status == Status::wrong_data ? Exit::wrong_data : Exit::ok;
}

}  // namespace

Exit run_loss(const LossOptions& options, std::FILE* out, std::FILE* err) {
  const BackendChoice backend = choose(options);
  const RankSource source = find_threads(options, backend);
  const bool threads = source.kind == RankSource::Kind::threads;
  const std::int64_t free_bytes = this_host().free_bytes;
  if (threads)
    check_memory(options.plan, source.group.size, free_bytes);
  else
    check_memory(options.plan, 1, free_bytes / source.local_size);

  LossRecord record;
  record.started = std::chrono::system_clock::now();
  record.argv = options.argv;
  record.notes = options.notes;
  record.backend = {
      std::string(backend.entry->name), std::string(library_version_string()), backend.because, {}};
  record.plan = options.plan;
  record.split = options.split;
  record.layout = split_rows(options.split, options.plan.problem.rows, source.group.size);
  record.kinds = options.kinds;
  record.timeout = options.timeout;
  const auto start = Clock::now();

  Shared shared;
  shared.alone.resize(options.kinds.size());
  const RankBody body = [&](Rank& rank) {
    if (rank.group.rank() == 0) record.backend.transport = rank.group.transport();
    run_losses(rank, options, threads, shared, record);
  };
  const auto conclude = [&](const std::vector<Outcome>& outcomes) {
    record.duration_s = seconds(Clock::now() - start);
    const Exit code = judge(outcomes, record, err);
    fmt::print(out, "{}", options.json ? loss_json(record) : loss_table(record));
    if (std::fflush(out) != 0) throw Failure(Exit::internal, "cannot write the output to stdout");
    return code;
  };
  if (threads)
    return conclude(run_threads(source.group.size, source.group, options.decorate, body));
  const Outcome own = run_rank(source.group, body);
  const std::chrono::nanoseconds patience = own.error ? std::chrono::seconds(2) : options.timeout;
  return end_together(source, own, patience, options.timeout + std::chrono::seconds(10), conclude);
}

}  // namespace tutti::tool
