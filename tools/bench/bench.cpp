#include "bench/bench.hpp"

#include <unistd.h>

#include <csignal>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <tutti/backend/backend_table.hpp>
#include <tutti/version.hpp>

#include "bench/own_calls.hpp"
#include "bench/recorder.hpp"
#include "bench/staging.hpp"
#include "common/duration.hpp"
#include "common/host.hpp"
#include "common/text.hpp"
#include "links/links.hpp"
#include "run/ending.hpp"
#include "run/source.hpp"
#include "run/world.hpp"

namespace tutti::tool {
namespace {

using Clock = std::chrono::steady_clock;

/// Links are not compared among more ranks, and one at a time among few.
constexpr int most_compared_ranks = 8;

/// Rank 0's decision before each row.
enum Decision : std::int64_t { go_on, out_of_time, interrupted };

/// True if the backend supports the block; the same on every rank.
bool supported(const ProcessGroup& group, const Block& block) {
  const auto has = [&](Operation operation) {
    return group.supports(operation, block.dtype, ReduceOp{block.op.value_or(ReduceOp::Kind::sum)});
  };
  const Operation operation = block.collective->operation;
  return has(operation) && (operation != Operation::send || has(Operation::recv));
}

/// Returns the part of the plan that the backend supports. An unsupported call is an error if the
/// user named it, and a note if only an "all" included it.
Plan supported_part(const ProcessGroup& group, const Plan& plan, const Request& request,
                    Recorder* recorder) {
  const bool asked = !request.collectives.all && !request.dtypes.all && !request.ops.all;
  Plan part;
  for (const Block& block : plan.blocks) {
    if (supported(group, block)) {
      part.blocks.push_back(block);
      continue;
    }
    const std::string what =
        fmt::format("backend {} does not support {}", group.backend(), title(block.key()));
    if (asked) throw Failure(Exit::unavailable, what);
    if (recorder != nullptr) recorder->note(what + "; left out");
  }
  return part;
}

/// Measures the links: because in a collective all ranks wait for the slowest, or for --links.
Links find_slow_links(ProcessGroup& group, Control& control, const Recorder* recorder, bool asked,
                      bool in_time) {
  const bool can = on_host(group.memory()) && group.supports(Operation::send, DType::u8) &&
                   group.supports(Operation::recv, DType::u8);
  if (asked && !can)
    throw Failure(Exit::unavailable,
                  fmt::format("--links: backend {} has no send of u8", group.backend()));
  const bool few = group.size() >= 3 && group.size() <= most_compared_ranks;
  if (!can || !(asked || few) || agree(group, in_time ? 1 : 0) == 0) return {};
  const LinkTiming timing = asked ? LinkTiming{}
                                  : LinkTiming{.passes = 2,
                                               .each = std::chrono::milliseconds(1),
                                               .budget = std::chrono::seconds(2)};
  return measure_links(group, control, recorder != nullptr ? recorder->world() : World{}, timing);
}

/// Runs the whole plan on one rank. `recorder` is null on ranks other than 0.
void run_plan(Rank& rank, const Plan& plan, const BenchOptions& options, bool threads,
              const Interrupt& interrupt, Recorder* recorder) {
  ProcessGroup& group = rank.group;
  const auto start = Clock::now();
  Control control(rank.store, group.rank(), group.size(), options.timeout);
  World world = collect_world(rank, control, threads, fingerprint(plan, options, group.size()));
  if (recorder != nullptr) recorder->begin(std::move(world));

  const Plan part = supported_part(group, plan, options.request, recorder);

  Workspace workspace(group.memory());
  std::int64_t measured = 0;
  for (const Block& block : part.blocks) {
    if (recorder != nullptr) recorder->begin_sweep(block.key());
    for (const std::int64_t bytes : block.bytes) {
      const std::int64_t decision =
          agree(group, interrupt.asked()                           ? interrupted
                       : Clock::now() - start >= options.max_total ? out_of_time
                                                                   : go_on);
      if (decision != go_on) {
        if (recorder != nullptr) recorder->end_early(decision == interrupted, measured, part);
        return;
      }
      if (recorder != nullptr) recorder->before_row(block, bytes);
      Row row = measure(rank, control, workspace, block, bytes, options.timing);
      ++measured;
      if (recorder != nullptr) recorder->row(std::move(row));
    }
    if (recorder != nullptr) recorder->end_sweep();
  }
  const bool in_time = !interrupt.asked() && Clock::now() - start < options.max_total;
  Links links = find_slow_links(group, control, recorder, options.links, in_time);
  if (recorder != nullptr) recorder->links(std::move(links));
  // No rank leaves the group while a peer still needs the rank.
  group.barrier();
}

/// True if `cause` may be the effect of an interrupt: an aborted group or a lost peer.
bool ended_on_request(const Outcome& cause) {
  return cause.failed->errc == Errc::aborted || cause.failed->errc == Errc::peer_lost;
}

/// Prints the errors, sets the record's status and returns the exit status.
Exit judge(const std::vector<Outcome>& outcomes, const BenchOptions& options, bool asked_to_end,
           BenchRecord& record, std::FILE* err) {
  const Outcome* cause = first_cause(outcomes);
  if (cause != nullptr && !(asked_to_end && ended_on_request(*cause)))
    return report_failure(outcomes, *cause, options.timeout, options.skip_unavailable, record, err);
  for (const Row& row : record.rows) {
    if (row.wrong.value_or(0) == 0) continue;
    fmt::print(err, "error: {} {}: {}\n", title(row.key), format_bytes(row.bytes),
               describe_wrong(row.wrong, row.first_wrong));
    record.status = Status::wrong_data;
  }
  if (asked_to_end) {
    record.status = Status::interrupted;
    return Exit::interrupted;
  }
  if (record.status == Status::wrong_data) return Exit::wrong_data;
  return options.links && !record.slow.empty() ? Exit::found : Exit::ok;
}

/// Handles SIGINT and SIGTERM for the ranks of this process, on a dedicated thread. Construct it
/// before other threads start; otherwise those threads receive the signals.
class Signals {
 public:
  /// `err`: null: silent.
  Signals(Interrupt& interrupt, std::FILE* err) : interrupt_(interrupt), err_(err) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, &before_);
    thread_ = std::jthread([this, set](const std::stop_token& stop) {
      int signal = 0;
      while (sigwait(&set, &signal) == 0 && !stop.stop_requested()) take(signal);
    });
  }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  ~Signals() {
    thread_.request_stop();
    pthread_kill(thread_.native_handle(), SIGTERM);  // Ends the wait of the thread.
    thread_.join();
    // A signal that is still pending gets its default effect here.
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  void take(int signal) {
    // Ignores a SIGINT soon after the last one: a terminal and a launcher may both forward the same
    // Ctrl-C. Shorter than the time after which `tutti run` forwards a second one (again_time).
    const auto now = Clock::now();
    const bool again = interrupt_.asked();
    if (again && signal == SIGINT && now - last_ < std::chrono::milliseconds(50)) return;
    last_ = now;
    bool going_on = false;
    if (signal == SIGINT && !again) {
      going_on = interrupt_.ask();
      if (going_on && err_ != nullptr)
        fmt::print(err_, "interrupted: this size is the last one; once more ends it now\n");
    } else if (!aborted_) {
      aborted_ = true;
      going_on = interrupt_.abort(signal == SIGINT ? "interrupted" : "ended by SIGTERM");
    }
    // Exits at once if nothing was measured, or if the measurement does not end.
    if (!going_on) _exit(static_cast<int>(Exit::interrupted));
  }

  Interrupt& interrupt_;
  std::FILE* err_;
  Clock::time_point last_{};
  bool aborted_ = false;
  sigset_t before_{};
  std::jthread thread_{};
};

Exit bench(const BenchOptions& asked, std::FILE* out, std::FILE* err) {
  BenchOptions options = asked;
  if (!options.device) options.device = usual_device(options.backend);
  const bool on_cpu = options.device->type == DeviceType::cpu;
  if (!on_cpu && (options.cold || options.timing.overlap || options.links))
    refuse("{}: not supported on a device in this release; leave it out", options.cold ? "--cold"
                                                                          : options.links
                                                                              ? "--links"
                                                                              : "--overlap");
  const BackendChoice backend = choose_backend(options);
  const RankSource source = find_ranks(options, backend);
  const int size = source.group.size;
  const bool threads = source.kind == RankSource::Kind::threads;
  const bool writes = source.group.rank == 0;
  if (options.links && size == 1) refuse("--links: one rank has no link; use at least 2 ranks");
  const Plan plan = make_plan(options.request, size);
  const Host host = this_host();
  // With --check all, each call also has copies of its data.
  const std::int64_t copies =
      options.timing.aggregate + (options.timing.check == Check::all ? 1 : 0);
  if (on_cpu) check_memory(plan, size, source.local_size, host.free_bytes, copies);
  if (writes) check_files(options);
  if (source.kind == RankSource::Kind::launches)
    return start_ranks(options, options.argv, options.patience);

  options.timing.timeout = options.timeout;
  if (options.cold) {
    // Twice the cache, but at most a quarter of the free memory for all ranks together.
    options.timing.cold_bytes = 2 * static_cast<std::size_t>(host.last_level_cache_bytes);
    options.timing.cold_limit_bytes =
        static_cast<std::size_t>(host.free_bytes / 4 / source.local_size);
  }

  Interrupt own_interrupt;
  Interrupt& interrupt = options.interrupt == nullptr ? own_interrupt : *options.interrupt;
  std::optional<Signals> signals;  // Before any other thread starts.
  if (options.handles_signals) signals.emplace(interrupt, writes && !options.quiet ? err : nullptr);

  BenchRecord record{begin_record(backend, options)};
  record.notes = plan.notes;
  const auto start = Clock::now();

  std::optional<Recorder> recorder;
  if (writes) recorder.emplace(options, plan, record, out, err);
  const RankBody body = [&](Rank& rank) {
    // One of several threads is enough: its abort reaches the others.
    std::optional<Interrupt::Scope> scope;
    if (!threads || rank.group.rank() == 0) scope.emplace(interrupt, rank.group);
    if (rank.group.rank() == 0) record_backend(record, rank.group);
    run_plan(rank, plan, options, threads, interrupt,
             rank.group.rank() == 0 ? &*recorder : nullptr);
  };
  // The time for which rank 0 waits for the other ranks' outcomes. Short after SIGTERM, because
  // SIGKILL usually follows.
  const auto patience = [&](const Outcome& own) -> std::chrono::nanoseconds {
    if (!own.failed) return options.timeout;
    return interrupt.asked() ? std::chrono::milliseconds(200) : options.patience;
  };
  const auto conclude = [&](const std::vector<Outcome>& outcomes) {
    record.duration_s = seconds(Clock::now() - start);
    recorder->end();
    const Exit code = judge(outcomes, options, interrupt.asked(), record, err);
    write(options, bench_report(record, options), out);
    return code;
  };
  return run_to_end(source, options, body, patience, conclude);
}

}  // namespace

std::string fingerprint(const Plan& plan, const BenchOptions& options, int ranks) {
  const Timing& timing = options.timing;
  return fmt::format("{} {} {} {} {} {} {} {} {} {} {}", plan.fingerprint(ranks),
                     static_cast<int>(timing.mode), timing.iters.value_or(0),
                     timing.warmup.value_or(-1), static_cast<int>(timing.rank_agg),
                     static_cast<int>(timing.check), timing.seed, timing.aggregate, timing.overlap,
                     options.links, options.cold);
}

Exit run_bench(const BenchOptions& options, std::FILE* out, std::FILE* err) {
  return or_skipped(options, err, [&] { return bench(options, out, err); });
}

}  // namespace tutti::tool
