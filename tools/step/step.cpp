#include "step/step.hpp"

#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "bench/staging.hpp"
#include "common/duration.hpp"
#include "common/host.hpp"
#include "common/text.hpp"
#include "run/control.hpp"
#include "run/ending.hpp"
#include "run/source.hpp"
#include "run/world.hpp"
#include "step/measure.hpp"

namespace tutti::tool {
namespace {

using Clock = std::chrono::steady_clock;

/// Refuses a step that needs more memory than is free: for the gradients, the buckets, twice while
/// they are rebuilt, and the copies of hooks.
void check_memory(const StepOptions& options, int local_size, std::int64_t free_bytes) {
  const double bytes = static_cast<double>(options.model.elements()) *
                       static_cast<double>(size_of(options.dtype)) * local_size;
  const double needed = bytes * (options.as_view ? 2.5 : 3.5);
  if (needed > static_cast<double>(free_bytes))
    refuse("--model {}: {} on this host need {:.1f} GB, and {} are free; use fewer ranks",
           options.model.name, plural(local_size, "rank"), needed / 1e9, format_bytes(free_bytes));
}

/// Runs all rows on one rank.
void run_rows(Rank& rank, const StepOptions& options, bool threads, StepRecord& record) {
  const bool first = rank.group.rank() == 0;
  Control control(rank.store, rank.group.rank(), rank.group.size(), options.timeout);
  World world = collect_world(rank, control, threads, describe_plan(options));
  if (first) {
    record_backend(record, rank.group);
    record.world = std::move(world);
    if (options.compute.count() > 0 && on_host(rank.group.memory()) &&
        2 * record.world.size / record.world.hosts > record.world.cpus)
      record.notes.push_back(fmt::format("{} share {}: the communication slows the compute loop",
                                         plural(record.world.size / record.world.hosts, "rank"),
                                         plural(record.world.cpus, "CPU")));
  }
  StepBench bench(rank, control, options, threads ? rank.group.size() : 1);
  for (const std::int64_t bucket_bytes : options.bucket_bytes) {
    StepRow row = bench.measure(bucket_bytes);
    if (first) record.rows.push_back(std::move(row));
  }
  // No rank leaves the group while a peer still needs the rank.
  rank.group.barrier();
}

/// Prints the errors and sets the record's status.
Exit judge(const std::vector<Outcome>& outcomes, const StepOptions& options, StepRecord& record,
           std::FILE* err) {
  if (const Outcome* cause = first_cause(outcomes))
    return report_failure(outcomes, *cause, options.timeout, options.skip_unavailable, record, err);
  for (const StepRow& row : record.rows) {
    if (row.wrong.value_or(0) == 0) continue;
    fmt::print(err, "error: step {}, bucket {}: {}\n", options.model.name,
               format_bytes(row.bucket_bytes), describe_wrong(row.wrong, row.first_wrong));
    record.status = Status::wrong_data;
  }
  return record.status == Status::wrong_data ? Exit::wrong_data : Exit::ok;
}

Exit step(const StepOptions& asked, std::FILE* out, std::FILE* err) {
  StepOptions options = asked;
  if (!options.device) options.device = usual_device(options.backend);
  const BackendChoice backend = choose_backend(options);
  const RankSource source = find_ranks(options, backend);
  const bool threads = source.kind == RankSource::Kind::threads;
  if (options.device->type == DeviceType::cpu)
    check_memory(options, threads ? source.group.size : source.local_size, this_host().free_bytes);
  if (source.group.rank == 0) check_files(options);
  if (source.kind == RankSource::Kind::launches)
    return start_ranks(options, options.argv, options.patience);

  StepRecord record{begin_record(backend, options)};
  const auto start = Clock::now();
  const RankBody body = [&](Rank& rank) { run_rows(rank, options, threads, record); };
  const auto patience = [&](const Outcome& own) -> std::chrono::nanoseconds {
    return own.failed ? options.patience : options.timeout;
  };
  const auto conclude = [&](const std::vector<Outcome>& outcomes) {
    record.duration_s = seconds(Clock::now() - start);
    const Exit code = judge(outcomes, options, record, err);
    write(options, step_report(record, options), out);
    return code;
  };
  return run_to_end(source, options, body, patience, conclude);
}

}  // namespace

Exit run_step(const StepOptions& options, std::FILE* out, std::FILE* err) {
  return or_skipped(options, err, [&] { return step(options, out, err); });
}

}  // namespace tutti::tool
