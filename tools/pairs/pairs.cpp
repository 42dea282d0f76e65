#include "pairs/pairs.hpp"

#include <utility>

#include <fmt/format.h>

#include "common/duration.hpp"
#include "common/text.hpp"
#include "pairs/output.hpp"
#include "run/control.hpp"
#include "run/ending.hpp"
#include "run/world.hpp"

namespace tutti::tool {
namespace {

using Clock = std::chrono::steady_clock;

/// The part of one rank.
void run_links(Rank& rank, const PairsOptions& options, bool threads, PairsRecord& record) {
  const bool first = rank.group.rank() == 0;
  Control control(rank.store, rank.group.rank(), rank.group.size(), options.timeout);
  World world = collect_world(rank, control, threads, describe_plan(options.timing));
  if (first) {
    record_backend(record, rank.group);
    record.world = world;
    if (options.timing.at_once && world.oversubscribed)
      record.notes.emplace_back("--at-once: the pairs of a round share CPUs");
  }
  Links measured = measure_links(rank.group, control, world, options.timing);
  if (first) record.measured = std::move(measured);
  // No rank leaves the group while a peer still needs the rank.
  rank.group.barrier();
}

Exit judge(const std::vector<Outcome>& outcomes, const PairsOptions& options, PairsRecord& record,
           std::FILE* err) {
  if (const Outcome* cause = first_cause(outcomes))
    return report_failure(outcomes, *cause, options.timeout, options.skip_unavailable, record, err);
  return record.measured.slow.empty() ? Exit::ok : Exit::found;
}

Exit pairs(const PairsOptions& asked, std::FILE* out, std::FILE* err) {
  PairsOptions options = asked;
  if (!options.device) options.device = usual_device(options.backend);
  if (options.device->type != DeviceType::cpu)
    refuse(
        "--device {}: pairs measures arrays of the host in this release; use tutti bench "
        "ping_pong,bandwidth",
        to_string(*options.device));
  const BackendChoice backend = choose_backend(options);
  const RankSource source = find_ranks(options, backend);
  if (source.group.size == 1) refuse("pairs: one rank has no link; use at least 2 ranks");
  if (source.group.rank == 0) check_files(options);
  if (source.kind == RankSource::Kind::launches)
    return start_ranks(options, options.argv, options.patience);

  PairsRecord record{begin_record(backend, options), {}};
  const bool threads = source.kind == RankSource::Kind::threads;
  const auto start = Clock::now();
  const RankBody body = [&](Rank& rank) { run_links(rank, options, threads, record); };
  const auto patience = [&](const Outcome& own) -> std::chrono::nanoseconds {
    return own.failed ? options.patience : options.timeout;
  };
  const auto conclude = [&](const std::vector<Outcome>& outcomes) {
    record.duration_s = seconds(Clock::now() - start);
    const Exit code = judge(outcomes, options, record, err);
    write(options, pairs_report(record, options), out);
    return code;
  };
  return run_to_end(source, options, body, patience, conclude);
}

}  // namespace

Exit run_pairs(const PairsOptions& options, std::FILE* out, std::FILE* err) {
  return or_skipped(options, err, [&] { return pairs(options, out, err); });
}

}  // namespace tutti::tool
