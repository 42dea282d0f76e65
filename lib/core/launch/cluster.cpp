#include <tutti/cluster.hpp>

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include <tutti/log.hpp>
#include <tutti/store/token.hpp>

#include "launch/cluster.hpp"
#include "launch/launcher_process.hpp"
#include "launch/pmi.hpp"
#include "launch/pmix.hpp"
#include "launch/unknown_variables.hpp"
#include "values/environment_switch.hpp"
#include "values/fail.hpp"
#include "values/hash.hpp"
#include "values/port_range.hpp"

namespace [[gnu::visibility("default")]] tutti {

ClusterEnvironment::~ClusterEnvironment() = default;

namespace {

/// Used if MASTER_PORT is not set: the default port of torch's launchers.
constexpr int default_master_port = 29500;
/// Ports of stores whose launcher gives none, below the kernel's range of ephemeral ports.
constexpr internal::PortRange job_ports{20000, 29999};

std::string_view read_text(const char* name) {
  const char* text = name == nullptr ? nullptr : std::getenv(name);
  return text == nullptr ? std::string_view() : std::string_view(text);
}

std::optional<int> read_number(const char* name) {
  const std::string_view value = read_text(name);
  if (value.empty()) return std::nullopt;
  int number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc() || end != value.data() + value.size() || number < 0)
    internal::failf(Errc::invalid_argument, "{} is '{}'; it must be a number >= 0", name, value);
  return number;
}

std::optional<int> read_port(const char* name) {
  const auto port = read_number(name);
  if (port && (*port < 1 || *port > 65535))
    internal::failf(Errc::invalid_argument, "{} is {}; a port must be from 1 to 65535", name,
                    *port);
  return port;
}

/// The variables of one launcher; null for one that it does not set.
struct Names {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  const char* node;
};

// OMPI_COMM_WORLD_NODE_RANK is not used: it is a local rank, not a node's number.
constexpr Names launchers[] = {
    {"tutti", "TUTTI_RANK", "TUTTI_SIZE", "TUTTI_LOCAL_RANK", "TUTTI_LOCAL_SIZE", "TUTTI_NODE"},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", nullptr},
    {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", nullptr},
    {"PALS", "PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", nullptr, nullptr},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr, "SLURM_NODEID"},
};
constexpr const Names& own = launchers[0];
constexpr const Names& torchrun = launchers[1];
constexpr const Names& open_mpi = launchers[2];
constexpr const Names& pmi = launchers[3];
constexpr const Names& pals = launchers[4];
constexpr const Names& slurm = launchers[5];

/// Returns the first launcher, from `names` on, that has set a variable; null: none.
const Names* first_set(const Names* names) {
  for (; names != std::end(launchers); ++names) {
    const bool rank = !read_text(names->rank).empty();
    const bool size = !read_text(names->size).empty();
    // PALS uses PMI's variable for the size, and its own for the rank.
    if (names == &pmi && !rank && !read_text(pals.rank).empty()) continue;
    if (names == &pals && !rank) continue;
    if (rank || size) return names;
  }
  return nullptr;
}

void check_rank(const char* rank_name, int rank, const char* size_name, int size) {
  if (rank >= size)
    internal::failf(Errc::invalid_argument, "{} is {}, but {} is {}; the rank must be smaller",
                    rank_name, rank, size_name, size);
}

/// True if Slurm started the step on one host.
bool slurm_has_one_host() {
  const auto of_step = read_number("SLURM_STEP_NUM_NODES");
  return (of_step ? of_step : read_number("SLURM_NNODES")) == 1;
}

void read_ranks(const Names& names, ClusterInfo& info) {
  const auto rank = read_number(names.rank);
  const auto size = read_number(names.size);
  if (!rank || !size) {
    const Names* other = first_set(&names + 1);
    internal::failf(Errc::invalid_argument, "{} is set, but {} is not; a launcher sets both{}{}{}",
                    rank ? names.rank : names.size, rank ? names.size : names.rank,
                    other == nullptr ? "" : "; the variables of another launcher (",
                    other == nullptr ? "" : other->launcher,
                    other == nullptr ? "" : ") cannot replace the missing one");
  }
  check_rank(names.rank, *rank, names.size, *size);
  const auto local_rank = read_number(names.local_rank);
  const auto local_size = read_number(names.local_size);
  if (local_rank && local_size)
    check_rank(names.local_rank, *local_rank, names.local_size, *local_size);
  if (local_size && *local_size > *size)
    internal::failf(Errc::invalid_argument,
                    "{} is {}, but {} is {}; a host cannot have more ranks than the world",
                    names.local_size, *local_size, names.size, *size);
  info.launcher = names.launcher;
  info.rank = *rank;
  info.size = *size;
  info.local_rank = local_rank.value_or(-1);
  info.local_size = local_size.value_or(-1);
  info.node = read_number(names.node).value_or(-1);
  if (&names == &slurm && slurm_has_one_host()) info.local_size = info.size;
}

/// Refuses RANK and WORLD_SIZE left over from torchrun in a script that another launcher runs. They
/// are leftovers if both launchers give the same size and different ranks. With another size they
/// belong to a launcher inside the other one, and are accepted.
void refuse_leftover(const ClusterInfo& info) {
  if (info.launcher != torchrun.launcher || !read_text("TORCHELASTIC_RUN_ID").empty()) return;
  const Names* outer = first_set(&torchrun + 1);
  if (outer == nullptr || read_text(outer->rank).empty() || read_text(outer->size).empty()) return;
  const auto rank = read_number(outer->rank);
  const auto size = read_number(outer->size);
  if (size == info.size && rank != info.rank)
    internal::failf(Errc::invalid_argument,
                    "{} is {} and {} is {}, but {} is {} and {} is {}; unset the variables of "
                    "{} or of {}, or set {} and {}",
                    torchrun.rank, info.rank, torchrun.size, info.size, outer->rank, *rank,
                    outer->size, *size, torchrun.launcher, outer->launcher, own.rank, own.size);
}

/// "JOB.STEP"; empty outside of a job of Slurm.
std::string slurm_step() {
  const auto job = read_text("SLURM_JOB_ID");
  return job.empty() ? std::string() : fmt::format("{}.{}", job, read_text("SLURM_STEP_ID"));
}

/// Refuses PMI's variables in a step of Slurm that a rank of another step has started without
/// PMI-1: each rank would take the rank and size of the one that started it.
void refuse_pmi_of_another_step(const ClusterInfo& info) {
  const auto step = read_text("PMI_JOBID");
  if (info.launcher != pmi.launcher || slurm_step().empty() || step.empty() || step == slurm_step())
    return;
  struct stat file {};
  const int connection = read_number("PMI_FD").value_or(-1);
  if (::fstat(connection, &file) == 0 && S_ISSOCK(file.st_mode)) return;  // Of an mpirun.
  internal::failf(
      Errc::invalid_argument,
      "{} is {} and {} is {} in step {} of Slurm (PMI_JOBID), but this is step {}; unset "
      "{}, {} and PMI_FD before srun, or set {} and {}",
      pmi.rank, info.rank, pmi.size, info.size, step, slurm_step(), pmi.rank, pmi.size, own.rank,
      own.size);
}

[[noreturn]] void bad_list(std::string_view list) {
  internal::failf(Errc::invalid_argument, "the list of nodes '{}' does not begin with a host name",
                  list);
}

/// Returns the first host of a host list of Slurm: "n03" for "n[03,07-12],gpu1".
std::string first_host(std::string_view list) {
  const auto end = list.find_first_of(",[");
  std::string host(list.substr(0, end));
  if (end == std::string_view::npos || list[end] == ',') {
    if (host.empty()) bad_list(list);
    return host;
  }
  // A name may have several brackets: "rack[1-2]n[0-3]".
  const auto close = list.find(']', end);
  if (close == std::string_view::npos) bad_list(list);
  const auto inside = list.substr(end + 1, close - end - 1);
  const auto number = inside.substr(0, inside.find_first_of(",-"));
  if (number.empty()) bad_list(list);
  host += number;
  const auto rest = list.substr(close + 1);
  return rest.empty() || rest[0] == ',' ? host : host + first_host(rest);
}

std::string tcp_address(std::string_view host, int port) {
  const bool v6 = host.find(':') != std::string_view::npos && !host.starts_with('[');
  return fmt::format("tcp://{}{}{}:{}", v6 ? "[" : "", host, v6 ? "]" : "", port);
}

int store_port(int base) {
  const int port = read_port("TUTTI_STORE_PORT").value_or(base);
  if (port > 65535)
    internal::failf(
        Errc::invalid_argument,
        "the store's port would be MASTER_PORT + 1 = {}, above 65535; set TUTTI_STORE_PORT", port);
  return port;
}

/// The port of the store of a job whose launcher gives none, of TUTTI_PORTS or job_ports.
int job_port(std::string_view job) {
  internal::Hash hash;
  hash.add(job);
  hash.add(std::uint64_t{0});  // Mixes the last letters into the low bits.
  const auto range = internal::port_range();
  const auto ports = range ? range->of_jobs() : job_ports;
  return ports.first + static_cast<int>(hash.value() % static_cast<unsigned>(ports.size()));
}

/// Identifies the job of a launcher that gives no address, if all ranks are on this host; else
/// empty.
std::string job_of_one_host(const ClusterInfo& info) {
  const Names* names = first_set(std::begin(launchers));
  if (names == nullptr || (names != &open_mpi && names != &pmi) || info.local_size != info.size ||
      !read_text("TUTTI_STORE").empty() || !read_text("MASTER_ADDR").empty())
    return {};
  const auto process = internal::launcher_process(std::array<const char*, 5>{
      names->rank, names->size, names->local_rank, "PMIX_NAMESPACE", "PMI_FD"});
  if (process.empty()) return {};
  // A launcher may run several jobs; Open MPI names them.
  return fmt::format("{}-{}", process, read_text("PMIX_NAMESPACE"));
}

/// Sets what an authenticated store compares.
void read_job(ClusterInfo& info) {
  const auto restarts = [&info](const char* name) {
    info.generation = static_cast<std::uint32_t>(read_number(name).value_or(0));
  };
  if (info.launcher == torchrun.launcher) {
    info.job = read_text("TORCHELASTIC_RUN_ID");
    restarts("TORCHELASTIC_RESTART_COUNT");
  } else if (info.launcher == slurm.launcher) {
    info.job = slurm_step();
    restarts("SLURM_RESTART_COUNT");
  }
  if (const auto job = read_text("TUTTI_JOB"); !job.empty()) info.job = job;
}

/// Returns the prefix of this run's keys. A store may outlive a restart of the job, and two steps
/// of a job may use the same address.
std::string read_run(const ClusterInfo& info) {
  std::string run;
  const auto add = [&run](const char* name) {
    if (const auto text = read_text(name); !text.empty()) run += fmt::format("{}/", text);
  };
  if (info.launcher == torchrun.launcher) {
    add("TORCHELASTIC_RUN_ID");
    add("TORCHELASTIC_RESTART_COUNT");
  } else if (info.launcher == slurm.launcher) {
    add("SLURM_JOB_ID");
    add("SLURM_STEP_ID");
    add("SLURM_RESTART_COUNT");
  } else if (const auto job = job_of_one_host(info); !job.empty()) {
    run = job + '/';
  }
  return run;
}

}  // namespace

bool internal::has_key_value_space(const ClusterInfo& info) {
  const auto pmix_job = PmixConnection::given();
  if (info.launcher == pmi.launcher) return !PmiConnection::given().empty();
  // A step that starts within a rank of another step inherits the variables of that step's PMIx.
  if (info.launcher == slurm.launcher)
    return !slurm_step().empty() && pmix_job.ends_with("." + slurm_step());
  return (info.launcher == open_mpi.launcher || info.launcher == pals.launcher) &&
         !pmix_job.empty();
}

int internal::named_store_port() {
  return read_port("TUTTI_STORE_PORT").value_or(0);
}

void internal::read_store(ClusterInfo& info, bool by_launcher) {
  const bool of_slurm = info.launcher == slurm.launcher;
  info.token_file = StoreToken::file_of_environment();
  info.open_store = environment_switch("TUTTI_STORE_OPEN", false);
  read_job(info);
  if (const auto store = read_text("TUTTI_STORE"); !store.empty()) {
    info.store = store;
    info.hosts_store = read_text("TUTTI_STORE_HOSTED") != "1";
  } else if (const auto host = read_text("MASTER_ADDR"); !host.empty()) {
    const auto master_port = read_port("MASTER_PORT");
    const int port = !master_port && of_slurm && !slurm_step().empty()
                         ? job_port(slurm_step())
                         : master_port.value_or(default_master_port) + 1;
    info.store = tcp_address(host, store_port(port));
  } else if (of_slurm) {
    // A token of all hosts serves ranks without a library of PMIx, too.
    if (by_launcher && info.token_file.empty() && info.local_size != info.size &&
        has_key_value_space(info))
      return;
    // Hosts of the step. The job may have other hosts, on which rank 0 never runs.
    auto nodes = read_text("SLURM_STEP_NODELIST");
    if (nodes.empty()) nodes = read_text("SLURM_JOB_NODELIST");
    if (!nodes.empty() && !slurm_step().empty())
      info.store = tcp_address(first_host(nodes), store_port(job_port(slurm_step())));
  } else if (const auto job = job_of_one_host(info); !job.empty()) {
    info.store = tcp_address("127.0.0.1", store_port(job_port(job)));
  }
}

std::vector<std::string> unknown_variables() {
  return internal::unknown_variables(environ);
}

std::optional<ClusterInfo> VariablesEnvironment::detect() const {
  const Names* names = first_set(std::begin(launchers));
  if (names == nullptr) return std::nullopt;
  ClusterInfo info;
  read_ranks(*names, info);
  if (static std::atomic<bool> told{false}; info.rank == 0 && !told.exchange(true))
    for (const std::string& sentence : unknown_variables())
      default_logger()(LogLevel::warning, sentence);
  refuse_leftover(info);
  refuse_pmi_of_another_step(info);
  internal::read_store(info);
  info.run = read_run(info);
  return info;
}

}  // namespace tutti
