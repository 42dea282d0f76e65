#include "loss/loss.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <tutti/backend/backend_table.hpp>

#include "common/duration.hpp"
#include "common/host.hpp"
#include "common/message.hpp"
#include "common/text.hpp"
#include "loss/output.hpp"
#include "loss/record.hpp"
#include "run/control.hpp"
#include "run/ending.hpp"
#include "run/source.hpp"
#include "run/world.hpp"

namespace tutti::tool {

namespace {

using Clock = std::chrono::steady_clock;

/// Timeout for the ranks that wait while one rank computes alone.
constexpr std::chrono::hours longest_alone{1};

/// True if a launcher started this process; "auto" is then a backend between processes.
bool under_launcher(const LossOptions& options) {
  try {
    return (options.environment ? options.environment->detect() : VariablesEnvironment().detect())
        .has_value();
  } catch (const Error&) {
    return true;  // find_ranks() reports the error.
  }
}

/// Refuses rows that need more than `free_bytes`: logits, targets, a gradient for each compared
/// call, and the pool of every rank in double.
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

/// The row of all ranks together.
LossRow make_row(LossKind kind, const OneProcess& alone, const std::vector<OfRank>& ranks) {
  LossRow row;
  row.kind = kind;
  row.temperature = alone.temperature;
  const losses::LossResult& last = alone.calls.back();
  if (is_ranking(kind)) row.valid_classes = std::ranges::count(last.valid, std::uint8_t{1});
  row.queued = alone.queued;
  row.loss = ranks.front().loss;
  row.time_us_one_process = spread(alone.cost.samples_us);
  row.evaluations_one_process = alone.cost.evaluations;
  row.peak_extra_bytes_one_process = alone.cost.peak_extra_bytes;
  if (row.valid_classes != 0) row.pairs = alone.pairs;
  double gradient_squares = 0;
  std::vector<double> slowest_us = ranks.front().cost.samples_us;
  for (const OfRank& found : ranks) {
    const LossCost& cost = found.cost;
    row.evaluations.push_back(cost.evaluations);
    row.difference.add(found.differences);
    gradient_squares += found.gradient_squares;
    if (cost.peak_extra_bytes)
      row.peak_extra_bytes = std::max(row.peak_extra_bytes.value_or(0), *cost.peak_extra_bytes);
    std::ranges::transform(slowest_us, cost.samples_us, slowest_us.begin(),
                           [](double a, double b) { return std::max(a, b); });
  }
  row.gradient_norm = std::sqrt(gradient_squares);
  row.time_us = spread(slowest_us);
  return row;
}

/// Runs all losses on one rank. @param alone_by_loss  results of one process, shared by the ranks
/// of this process.
void run_losses(Rank& rank, const LossOptions& options, bool threads,
                std::vector<OneProcess>& alone_by_loss, LossRecord& record) {
  ProcessGroup& group = rank.group;
  const bool first = group.rank() == 0;
  Control control(rank.store, group.rank(), group.size(), options.timeout);
  const auto wait_for_rank_0 = [&group] { group.barrier({.deadline = longest_alone}); };

  World world = collect_world(rank, control, threads, describe_plan(options, record.layout));
  if (first) record.world = std::move(world);
  for (std::size_t i = 0; i < options.kinds.size(); ++i) {
    const LossKind kind = options.kinds[i];
    rank.position.what = name_of(kind);
    rank.position.bytes = 0;
    rank.position.iteration = -1;
    OneProcess& alone = alone_by_loss[i];
    if (first) alone = compute_alone(kind, options.plan, true);
    wait_for_rank_0();
    if (!first && !threads) alone = compute_alone(kind, options.plan, false);
    wait_for_rank_0();
    const OfRank found =
        compute_together(rank, kind, options.plan, record.layout, alone, first || !threads);
    // The ranks have computed their results, so collect() waits only for messages.
    group.barrier();
    std::vector<OfRank> ranks;
    for (const std::string& text : control.collect(to_message(found)))
      ranks.push_back(from_message<OfRank>(text));
    if (first) record.rows.push_back(make_row(kind, alone, ranks));
    if (first || !threads) alone = {};
  }
}

/// Prints the errors, sets the record's status and returns the exit status.
Exit judge(const std::vector<Outcome>& outcomes, const LossOptions& options, LossRecord& record,
           std::FILE* err) {
  if (const Outcome* cause = first_cause(outcomes))
    return report_failure(outcomes, *cause, options.timeout, false, record, err);
  for (const LossRow& row : record.rows) {
    if (row.valid_classes == 0)
      record.notes.push_back(
          fmt::format("{}: no class is valid in the last call, so its loss and gradient are 0",
                      name_of(row.kind)));
    const std::int64_t queue = options.plan.problem.queue;
    if (row.queued && *row.queued < queue)
      record.notes.push_back(fmt::format("{}: after {} its queue has {} of {} rows",
                                         name_of(row.kind), plural(options.plan.calls, "call"),
                                         *row.queued, queue));
    if (row.difference.wrong == 0) continue;
    fmt::print(err, "error: {}: {}\n", name_of(row.kind), describe_wrong(row));
    record.status = Status::wrong_data;
  }
  return record.status == Status::wrong_data ? Exit::wrong_data : Exit::ok;
}

}  // namespace

Exit run_loss(const LossOptions& options, std::FILE* out, std::FILE* err) {
  const BackendChoice backend = choose_backend(
      options, under_launcher(options) ? RankPlacement::host : RankPlacement::threads);
  RankSource source = find_ranks(options, backend);
  // One process is enough to compare numbers, so -n makes threads with every backend.
  if (source.kind == RankSource::Kind::launches) source.kind = RankSource::Kind::threads;
  const bool threads = source.kind == RankSource::Kind::threads;
  const std::int64_t free_bytes = this_host().free_bytes;
  if (threads)
    check_memory(options.plan, source.group.size, free_bytes);
  else
    check_memory(options.plan, 1, free_bytes / source.local_size);

  if (source.group.rank == 0) check_files(options);
  LossRecord record{begin_record(backend, options)};
  record.notes = options.notes;
  record.layout = split_rows(options.split, options.plan.problem.rows, source.group.size);
  const auto start = Clock::now();

  std::vector<OneProcess> alone(options.kinds.size());
  const RankBody body = [&](Rank& rank) {
    if (rank.group.rank() == 0) record_backend(record, rank.group);
    run_losses(rank, options, threads, alone, record);
  };
  const auto conclude = [&](const std::vector<Outcome>& outcomes) {
    record.duration_s = seconds(Clock::now() - start);
    const Exit code = judge(outcomes, options, record, err);
    write(options, loss_report(record, options), out);
    return code;
  };
  const auto patience = [&](const Outcome& own) -> std::chrono::nanoseconds {
    return own.failed ? std::chrono::seconds(2) : options.timeout;
  };
  return run_to_end(source, options, body, patience, conclude);
}

}  // namespace tutti::tool
