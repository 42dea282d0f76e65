#include "bench.hpp"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <tutti/backend.hpp>
#include <tutti/cluster.hpp>
#include <tutti/init.hpp>
#include <tutti/version.hpp>

#include "atomic_file.hpp"
#include "duration.hpp"
#include "hang_report.hpp"
#include "host.hpp"
#include "output.hpp"
#include "output_table.hpp"
#include "progress.hpp"
#include "text.hpp"

namespace tutti::tool {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

/// How the ranks come to be.
struct Launch {
  GroupOptions group{};
  bool threads = false;  ///< `group.size` of them in this process; else this process is one.
};

BackendChoice choose(const std::string& backend) {
  try {
    return choose_backend(backend, Device{});
  } catch (const Error& error) {
    const bool typo = error.code() == Errc::invalid_argument;
    throw Failure(typo ? Exit::usage : Exit::unavailable,
                  fmt::format("--backend {}: {}", backend, error.message()));
  }
}

Launch plan_launch(const BenchOptions& options) {
  Launch launch;
  launch.group.backend = options.backend;
  launch.group.timeout = options.timeout;
  std::optional<ClusterInfo> info;
  try {
    info = VariablesEnvironment().detect();
  } catch (const Error& error) {
    throw Failure(Exit::unavailable, error.message());
  }
  if (options.ranks) {
    if (info && info->size > 1)
      throw Failure(Exit::unavailable,
                    fmt::format("launcher {} started {} processes, and -n {} would start {} ranks "
                                "in each of them; leave out -n or unset the launcher variables",
                                info->launcher, info->size, *options.ranks, *options.ranks));
    launch.group.size = *options.ranks;
    launch.threads = true;
    return launch;
  }
  if (!info)
    refuse("no launcher found (RANK and WORLD_SIZE are not set); pass -n N for N ranks here");
  launch.group.rank = info->rank;
  launch.group.size = info->size;
  try {
    if (!info->store.empty()) launch.group.store = open_store(info->store);
  } catch (const Error& error) {
    throw Failure(Exit::unavailable, error.message());
  }
  if (!launch.group.store && info->size > 1)
    throw Failure(
        Exit::unavailable,
        fmt::format("launcher {} started {} processes, but they have no store to meet in; "
                    "set TUTTI_STORE=file:///directory",
                    info->launcher, info->size));
  return launch;
}

/// Every rank tells rank 0 where it is.
World meet(Rank& rank, Control& control, bool threads) {
  const Host host = this_host();
  const Json mine{{"host", host.name},     {"pid", host.pid},
                  {"cpuset", host.cpuset}, {"model", host.model},
                  {"cpus", host.cpus},     {"device", to_string(rank.group.memory().device())}};
  World world;
  world.size = rank.group.size();
  world.threads = threads;
  world.cpus = host.cpus;
  std::map<std::string, int> ranks_of_host;
  int number = 0;
  for (const std::string& text :
       control.collect(mine.dump(-1, ' ', false, Json::error_handler_t::replace))) {
    const Json json = Json::parse(text);
    const RankInfo info{number++,
                        json.at("host").get<std::string>(),
                        json.at("pid").get<int>(),
                        json.at("device").get<std::string>(),
                        json.at("cpuset").get<std::string>(),
                        json.at("model").get<std::string>()};
    if (++ranks_of_host[info.host] > json.at("cpus").get<int>()) world.oversubscribed = true;
    world.ranks.push_back(info);
  }
  world.hosts = std::max(1, static_cast<int>(ranks_of_host.size()));
  return world;
}

/// What rank 0 keeps and shows while the run goes on.
class Recorder {
 public:
  Recorder(const BenchOptions& options, const Plan& plan, Record& record, std::FILE* out,
           std::FILE* err)
      : options_(options),
        plan_(plan),
        record_(record),
        err_(err),
        progress_(err, !options.quiet, plan.rows()) {
    if (options.format != Format::table) return;
    TableOptions table;
    if (options.percentiles_given) table.percentiles = options.timing.percentiles;
    table.single_block = plan.blocks.size() == 1;
    table.sort_rows = options.request.order == Order::random;
    table.fixed_iterations = options.timing.iters.has_value();
    table_.emplace(out, table);
  }

  void begin(World world) {
    record_.world = std::move(world);
    begun_ = true;
    if (table_) table_->begin(record_, plan_.blocks.front().key());
  }
  void note(const std::string& text) {
    progress_.clear();
    record_.notes.push_back(text);
    if (!options_.quiet) fmt::print(err_, "note: {}\n", text);
  }
  void begin_block(const Block& block) {
    first_of_block_ = record_.rows.size();
    progress_.clear();
    if (table_) table_->begin_block(block.key());
  }
  void before_row(const Block& block, std::int64_t bytes) {
    progress_.before_row(block.key(), bytes);
  }
  void row(Row row) {
    progress_.clear();
    if (options_.verbose)
      fmt::print(err_, "{} {}: {} warm-up calls, {} iterations\n", title(row.key),
                 format_bytes(row.bytes), row.warmup_calls, row.time_us.n);
    if (table_) table_->row(row);
    progress_.after_row(row);
    record_.rows.push_back(std::move(row));
  }
  void end_block(const Block& block) {
    std::vector<Point> points;
    for (std::size_t i = first_of_block_; i < record_.rows.size(); ++i) {
      const Row& row = record_.rows[i];
      points.push_back({static_cast<double>(row.bytes), row.percentiles_us.at(50)});
    }
    const auto fit = fit_line(points);
    if (fit) record_.fits.push_back({block.key(), *fit});
    progress_.clear();
    if (table_) table_->end_block(fit ? &record_.fits.back() : nullptr);
  }
  void end() {
    progress_.clear();
    if (table_ && begun_) table_->end(record_);
  }

 private:
  const BenchOptions& options_;
  const Plan& plan_;
  Record& record_;
  std::FILE* err_;
  Progress progress_;
  std::optional<Table> table_{};
  bool begun_ = false;
  std::size_t first_of_block_ = 0;
};

/// Whether the backend has what the block needs: the same answer on every rank.
bool supported(const ProcessGroup& group, const Block& block) {
  const ReduceOp op{block.op.value_or(ReduceOp::Kind::sum)};
  const Operation operation = block.collective->operation;
  if (!group.supports(operation, block.dtype, op)) return false;
  return operation != Operation::send || group.supports(Operation::recv, block.dtype, op);
}

/// The whole run, on one rank. `recorder` is null on the others.
void run_plan(Rank& rank, const Plan& plan, const BenchOptions& options, bool threads,
              Recorder* recorder) {
  ProcessGroup& group = rank.group;
  const auto start = Clock::now();
  Control control(rank.store, group.rank(), group.size(), options.timeout);
  World world = meet(rank, control, threads);
  if (recorder != nullptr) recorder->begin(std::move(world));

  const bool asked =
      !options.request.collectives.all && !options.request.dtypes.all && !options.request.ops.all;
  Workspace workspace(group.memory());
  std::int64_t left = plan.rows();
  for (const Block& block : plan.blocks) {
    if (!supported(group, block)) {
      const std::string what =
          fmt::format("backend {} does not support {}", group.backend(), title(block.key()));
      if (asked) throw Failure(Exit::unavailable, what);
      if (recorder != nullptr) recorder->note(what + "; left out");
      left -= std::ssize(block.bytes);
      continue;
    }
    if (recorder != nullptr) recorder->begin_block(block);
    for (const std::int64_t bytes : block.bytes) {
      const bool out_of_time = Clock::now() - start >= options.max_total;
      if (agree(group, out_of_time ? 1 : 0) != 0) {
        if (recorder != nullptr) {
          recorder->end_block(block);
          recorder->note(fmt::format("--max-total {} is over: {} of {} rows were not measured",
                                     format_duration(options.max_total), left, plan.rows()));
        }
        return;
      }
      if (recorder != nullptr) recorder->before_row(block, bytes);
      Row row = measure(group, control, workspace, block, bytes, options.timing, rank.position);
      if (recorder != nullptr) recorder->row(std::move(row));
      --left;
    }
    if (recorder != nullptr) recorder->end_block(block);
  }
  // Nobody leaves while another still waits for it.
  group.barrier();
}

Exit exit_code_of(const Outcome& outcome) {
  if (!outcome.error) return Exit::ok;
  try {
    std::rethrow_exception(outcome.error);
  } catch (const Failure& failure) {
    return failure.code();
  } catch (const Error& error) {
    switch (error.code()) {
      case Errc::timeout:
      case Errc::mismatch:
        return Exit::timeout;
      case Errc::unsupported:
      case Errc::resource_exhausted:
        return Exit::unavailable;
      case Errc::invalid_argument:
      case Errc::count_overflow:
      case Errc::not_initialized:
      case Errc::peer_lost:
      case Errc::aborted:
      case Errc::forked:
      case Errc::backend:
        return Exit::internal;
    }
  } catch (...) {
  }
  return Exit::internal;
}

/// Prints what went wrong and sets the record's status.
Exit judge(const std::vector<Outcome>& outcomes, const BenchOptions& options, Record& record,
           std::FILE* err) {
  const Outcome* cause = first_cause(outcomes);
  if (cause != nullptr) {
    const Exit code = exit_code_of(*cause);
    record.error = error_text(*cause);
    record.status = code == Exit::timeout ? Status::timeout : Status::error;
    if (code == Exit::timeout)
      fmt::print(err, "{}", hang_report(outcomes, record.world, options.timeout));
    else if (code == Exit::unavailable && options.skip_unavailable)
      fmt::print(err, "skipped: {}\n", record.error);
    else
      fmt::print(err, "error: {}\n", record.error);
    return code == Exit::unavailable && options.skip_unavailable ? Exit::skipped : code;
  }
  for (const Row& row : record.rows) {
    if (row.wrong.value_or(0) == 0) continue;
    fmt::print(err, "error: {} {}: {}\n", title(row.key), format_bytes(row.bytes),
               describe_wrong(row));
    record.status = Status::wrong_data;
  }
  return record.status == Status::wrong_data ? Exit::wrong_data : Exit::ok;
}

Exit bench(const BenchOptions& options, std::FILE* out, std::FILE* err) {
  const BackendChoice backend = choose(options.backend);
  const Launch launch = plan_launch(options);
  const int size = launch.group.size;
  const Plan plan = make_plan(options.request, size);
  const Host host = this_host();
  const int local_ranks = launch.threads ? size : 1;
  check_memory(plan, size, local_ranks, host.free_bytes);

  BenchOptions run = options;
  run.timing.timeout = options.timeout;
  if (options.cold) {
    // Twice the cache, of which at most a quarter of the free memory for all ranks together.
    run.timing.cold_bytes = 2 * static_cast<std::size_t>(host.last_level_cache_bytes);
    run.timing.cold_limit_bytes = static_cast<std::size_t>(host.free_bytes / 4 / local_ranks);
  }

  Record record;
  record.started = std::chrono::system_clock::now();
  record.argv = options.argv;
  record.backend = {std::string(backend.entry->name), std::string(library_version_string()),
                    backend.because};
  record.notes = plan.notes;
  const auto start = Clock::now();
  const bool writes = launch.group.rank == 0;
  std::vector<AtomicFile> files;
  if (writes)
    for (const std::string& path : options.files) files.emplace_back(path);

  std::optional<Recorder> recorder;
  if (writes) recorder.emplace(run, plan, record, out, err);
  const RankBody body = [&](Rank& rank) {
    run_plan(rank, plan, run, launch.threads, rank.group.rank() == 0 ? &*recorder : nullptr);
  };
  const std::vector<Outcome> outcomes =
      launch.threads ? run_threads(size, launch.group, options.decorate, body)
                     : std::vector<Outcome>{run_rank(launch.group, body)};

  record.duration_s = seconds(Clock::now() - start);
  if (recorder) recorder->end();
  const Exit code = judge(outcomes, options, record, err);
  if (writes) {
    fmt::print(out, "{}", render(options.format, record, options));
    for (AtomicFile& file : files)
      file.commit(render(format_of(file.path()).value(), record, options));
    if (std::fflush(out) != 0) throw Failure(Exit::internal, "cannot write the output to stdout");
  }
  return code;
}

}  // namespace

Exit run_bench(const BenchOptions& options, std::FILE* out, std::FILE* err) {
  try {
    return bench(options, out, err);
  } catch (const Failure& failure) {
    if (failure.code() != Exit::unavailable || !options.skip_unavailable) throw;
    fmt::print(err, "skipped: {}\n", failure.what());
    return Exit::skipped;
  }
}

}  // namespace tutti::tool
