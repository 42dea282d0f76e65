#include "run/source.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include <tutti/cluster.hpp>
#include <tutti/error.hpp>
#include <tutti/init.hpp>
#include <tutti/version.hpp>

#include "common/environment.hpp"
#include "common/exit_code.hpp"
#include "common/text.hpp"
#include "run/launcher.hpp"

namespace tutti::tool {
namespace {

/// Launchers' variables for the number of processes. SLURM_NTASKS is missing because it is also set
/// in the script of a job, which is a single process.
constexpr std::array<std::string_view, 5> size_variables{
    "TUTTI_SIZE", "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"};

struct Launcher {
  int size = 1;
  std::string because{};  ///< "OMPI_COMM_WORLD_SIZE=16".
};

/// The launcher that started the most processes, with or without a known rank. Empty if no launcher
/// started more than one.
std::optional<Launcher> started() {
  std::optional<Launcher> most;
  for (const std::string_view name : size_variables) {
    const char* text = std::getenv(name.data());
    if (text == nullptr) continue;
    const std::string_view value = text;
    int size = 0;
    std::from_chars(value.data(), value.data() + value.size(), size);
    if (size > (most ? most->size : 1)) most = Launcher{size, fmt::format("{}={}", name, value)};
  }
  return most;
}

/// Refuses to run alone in each of many processes: every process would measure one rank.
void refuse_alone(int group, std::string_view remedy) {
  const std::optional<Launcher> launcher = started();
  if (!launcher) return;
  throw Failure(Exit::unavailable,
                fmt::format("launcher started {} processes ({}) but this group has {}. {}",
                            launcher->size, launcher->because, plural(group, "rank"), remedy));
}

std::optional<ClusterInfo> detect(const RunOptions& options) {
  try {
    return options.environment ? options.environment->detect() : VariablesEnvironment().detect();
  } catch (const Error& error) {
    throw Failure(Exit::unavailable, error.message());
  }
}

std::shared_ptr<Store> open(const ClusterInfo& info, const RunOptions& options) {
  try {
    return open_cluster_store(info, options.timeout);
  } catch (const Error& error) {
    const bool typo = error.code() == Errc::invalid_argument && !options.store.empty();
    throw Failure(typo ? Exit::usage : Exit::unavailable,
                  error.message() + (info.store.empty() ? "; or pass --store" : ""));
  }
}

void join(const ClusterInfo& info, const RunOptions& options, RankSource& source) {
  source.kind = RankSource::Kind::member;
  source.group.rank = info.rank;
  source.group.size = info.size;
  source.group.device = source.placement.of(info.local_rank >= 0 ? info.local_rank : info.rank);
  source.local_size = std::max(info.local_size, 1);
  if (info.size == 1) {
    refuse_alone(1, "Pass --store or unset the launcher variables.");
    return;
  }
  ClusterInfo told = info;
  if (!options.store.empty()) {
    told.store = options.store;
    told.hosts_store = true;
  }
  source.group.store = open(told, options);
}

}  // namespace

void add_launch_options(OptionList& options, RunOptions& to) {
  const auto ranks = [&to](std::string_view, const std::string& text) {
    to.ranks = static_cast<int>(parse_integer("-n", text, 1, most_ranks));
  };
  const auto device = [&to](std::string_view, const std::string& text) {
    to.device = parse_device(text);
  };
  std::vector<std::string_view> backends{"auto"};
  backends.insert(backends.end(), known_backends().begin(), known_backends().end());
  options.insert(
      options.end(),
      {{"-n,--ranks", ranks,
        "ranks to start on this host, 1 to 4096; without it they are the launcher's", "N",
        "Launch"},
       {"--backend", to_text(to.backend, backends),
        "auto, or a name from 'tutti info'; local: threads of one process", "NAME", "Launch"},
       {"--store", &to.store,
        "where a launcher's ranks meet, tcp://HOST:PORT or file:///DIR, instead of TUTTI_STORE",
        "URL", "Launch"},
       {"--timeout", to_timeout(to.timeout), "limit of one call; a longer one ends the run", "TIME",
        "Launch"},
       {"--nnodes", to_integer(to.nodes, 1, most_ranks),
        "number of nodes that run this command, with -n ranks each", "K", "Launch"},
       {"--node-rank", to_integer(to.node, 0, most_ranks), "number of this node, from 0", "R",
        "Launch"},
       {"--rendezvous", &to.rendezvous, "where several nodes meet: node 0 and a free port of it",
        "HOST:PORT", "Launch"},
       {"--expect-ranks", to_integer(to.expect_ranks, 1, most_ranks),
        "exit 69 if the group has another number of ranks", "N", "Launch"},
       {"--iface", &to.iface, "network interface as the backend writes it; tcp: eth, =eth0, ^lo",
        "NAME", "Launch"},
       {"--device", Reader{device, {"cpu", "cuda"}, "cpu; nccl: cuda"},
        "where the arrays are: cpu, cuda (devices in turn by local rank) or cuda:N", "DEVICE",
        "Launch"},
       {"--threads-per-proc", to_integer(to.threads_per_proc, 1, most_ranks),
        "1: ranks are processes; the number of -n: threads of this process", "T", "Launch"},
       {"--skip-unavailable", &to.skip_unavailable,
        "exit 77 instead of 69; Meson and Automake read 77 as skipped", "", "Launch"}});
}

void check_launch(RunOptions& options) {
  (void)parse_integer("--node-rank", std::to_string(options.node), 0, options.nodes - 1);
  if (options.nodes > 1 && options.rendezvous.empty())
    refuse("--nnodes {} needs --rendezvous HOST:PORT, where node 0 listens", options.nodes);
  if (const auto count = options.threads_per_proc) {
    options.processes = *count == 1;
    options.threads = options.ranks && *count == *options.ranks && *count > 1;
    if (!options.processes && !options.threads)
      refuse("--threads-per-proc {}: must be 1 or equal to -n in this release", *count);
  }
  if (options.iface.empty()) return;
  if (options.backend.find(':') != std::string::npos)
    refuse("--iface {}: --backend {} has an argument already", options.iface, options.backend);
  options.backend += ":" + options.iface;
}

BackendChoice choose_backend(const RunOptions& options) {
  try {
    return choose_backend(options, RankPlacement::host);
  } catch (const Failure& failure) {
    const bool only_threads = options.ranks && options.nodes == 1;
    if (failure.code() != Exit::unavailable || !only_threads) throw;
    return choose_backend(options, RankPlacement::threads);
  }
}

BackendChoice choose_backend(const RunOptions& options, RankPlacement placement) {
  const DeviceRequest device = options.device.value_or(DeviceRequest{});
  try {
    return tutti::choose_backend(options.backend, {device.type, device.index.value_or(0)},
                                 placement);
  } catch (const Error& error) {
    const bool typo = error.code() == Errc::invalid_argument;
    throw Failure(
        typo ? Exit::usage : Exit::unavailable,
        fmt::format("--backend {}{}: {}", options.backend,
                    device.type == DeviceType::cpu ? std::string()
                                                   : fmt::format(" --device {}", to_string(device)),
                    error.message()));
  }
}

RunRecord begin_record(const BackendChoice& backend, const OutputOptions& output) {
  RunRecord record;
  record.started = std::chrono::system_clock::now();
  record.argv = output.argv;
  record.env = allowed_environment(output.env_allow);
  record.backend = {
      std::string(backend.entry->name), std::string(library_version_string()), backend.because, {}};
  return record;
}

void record_backend(RunRecord& record, const ProcessGroup& group) {
  record.backend.name = group.backend();
  record.backend.chosen_because = group.backend_reason();
  record.backend.transport = group.transport();
}

RankSource find_ranks(const RunOptions& options, const BackendChoice& backend) {
  const bool threads = backend.entry->one_process || options.threads;
  if (backend.entry->one_process && options.processes && options.ranks.value_or(1) > 1)
    refuse("--threads-per-proc 1: ranks of backend {} are threads of one process; leave it out",
           backend.entry->name);
  if (backend.entry->name == "local" && !backend.args.empty())
    refuse("backend local has no network interface or other argument, but was given '{}'",
           backend.args);
  RankSource source;
  source.placement = DevicePlacement(options.device.value_or(DeviceRequest{}), *backend.entry);
  // The ranks themselves know best what "auto" is, and whether they share a host.
  source.group.backend = options.backend;
  source.group.timeout = options.timeout;
  const std::optional<ClusterInfo> info = detect(options);
  if (!options.ranks) {
    if (options.threads) refuse("--threads-per-proc needs -n, the number of ranks here");
    if (options.nodes > 1) refuse("--nnodes needs -n, the number of ranks on this node");
    if (!info)
      refuse("no launcher found (RANK and WORLD_SIZE are not set); pass -n N for N ranks here");
    join(*info, options, source);
  } else if (info && *options.ranks == (info->local_size > 0 ? info->local_size : info->size)) {
    join(*info, options, source);  // Started by the launcher, often this program with -n.
  } else {
    refuse_alone(*options.ranks, "Leave out -n or unset the launcher variables.");
    if (!options.store.empty())
      refuse("--store {}: ranks started by -n use their own store; leave one of the two out",
             options.store);
    if (threads && options.nodes > 1)
      refuse(
          "--nnodes {}: the ranks are threads of one process ({}), which runs on one node; leave "
          "one of the two out",
          options.nodes, options.threads ? "--threads-per-proc" : "backend local");
    source.local_size = *options.ranks;
    source.group.size = *options.ranks * options.nodes;
    source.kind =
        threads || source.group.size == 1 ? RankSource::Kind::threads : RankSource::Kind::launches;
  }
  if (options.expect_ranks && *options.expect_ranks != source.group.size)
    throw Failure(Exit::unavailable,
                  fmt::format("--expect-ranks {}: this group has {}", *options.expect_ranks,
                              plural(source.group.size, "rank")));
  return source;
}

Exit start_ranks(const RunOptions& options, const std::vector<std::string>& argv,
                 std::chrono::nanoseconds patience) {
  LaunchOptions ranks;
  ranks.command = argv;
  ranks.command.front() = std::filesystem::read_symlink("/proc/self/exe");
  ranks.ranks = *options.ranks;
  ranks.nodes = options.nodes;
  ranks.node = options.node;
  ranks.rendezvous = options.rendezvous;
  ranks.join_timeout = options.timeout;
  ranks.output = LaunchOptions::Output::inherited;
  ranks.ranks_report = true;
  // Enough time for rank 0 to detect a missing rank, report it and write the results.
  ranks.grace = patience + std::chrono::seconds(1);
  return static_cast<Exit>(launch(ranks));
}

}  // namespace tutti::tool
