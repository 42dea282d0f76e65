#include <fcntl.h>
#include <netdb.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

#include <fmt/format.h>

#include <tutti/backend/backend_table.hpp>
#include <tutti/cluster.hpp>
#include <tutti/error.hpp>
#include <tutti/store/token.hpp>
#include <tutti/version.hpp>

#include "common/build.hpp"
#include "common/environment.hpp"
#include "common/host.hpp"
#include "common/text.hpp"
#include "inspect/checkup.hpp"
#include "run/child.hpp"

namespace tutti::tool {
namespace {

using enum Level;

/// The first line of a file; empty if it cannot be read.
std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

void check_versions(Checkup& checkup) {
  const bool matches = header_version == library_version();
  checkup.add(
      matches ? ok : problem, "version",
      fmt::format("tutti {} (git {}, {}, {}){}", library_version_string(), git_version(),
                  build_type(), compiler(),
                  matches ? "" : ": the tool and the library have different versions"),
      matches ? "" : "Install both from one build; LD_LIBRARY_PATH may name an old library");
  checkup.facts.push_back({problem, "the version", std::string(library_version_string())});
  checkup.facts.push_back({warning, "the build", fmt::format("{}, {}", git_version(), compiler())});
}

void check_variables(Checkup& checkup) {
  const auto strays = unknown_variables();
  for (const auto& sentence : strays)
    checkup.add(warning, "variables", sentence, "Correct the name, or unset the variable");
  const auto ours = allowed_environment({});
  std::string list;
  for (const auto& [name, value] : ours) list += fmt::format("{}{}", list.empty() ? "" : " ", name);
  if (strays.empty()) checkup.add(ok, "variables", list.empty() ? "none are set" : "set: " + list);
  // These decide alone on each rank, or name files and interfaces of one host.
  constexpr std::array<std::string_view, 4> of_a_host{"TUTTI_IFNAME", "TUTTI_TRACE_DIR",
                                                      "TUTTI_LOG", "CUDA_VISIBLE_DEVICES"};
  for (const auto& entry : ours) {
    const std::string& name = entry.first;
    const bool stray = std::ranges::any_of(strays, [&name](const std::string& sentence) {
      // The name ends the sentence, or the suggestion of another name follows.
      return (sentence + ';').find(" " + name + ';') != std::string::npos;
    });
    if (!stray && std::ranges::find(of_a_host, name) == of_a_host.end())
      checkup.facts.push_back({name.starts_with("TUTTI_") ? problem : warning, name, entry.second});
  }
  try {
    if (const auto token = StoreToken::file_of_environment(); !token.empty())
      (void)StoreToken::read(token);
  } catch (const Error& error) {
    checkup.add(problem, "token", error.message(),
                "Set TUTTI_TOKEN_FILE to a readable file with the secret of the job");
  }
}

std::string limit_text(rlim_t limit) {
  return limit == RLIM_INFINITY ? "unlimited" : fmt::format("{}", limit);
}

void check_limits(Checkup& checkup, int ranks) {
  const auto limit_of = [&](__rlimit_resource which, const char* name) {
    rlimit limit{};
    ::getrlimit(which, &limit);
    checkup.facts.push_back({warning, name, limit_text(limit.rlim_cur)});
    return limit.rlim_cur;
  };
  const auto files = limit_of(RLIMIT_NOFILE, "the limit of open files");
  // The store of rank 0 has a connection of each rank, and so has each group over TCP.
  const auto needed = static_cast<rlim_t>(64 + 4 * std::max(ranks, 2));
  const auto files_text = fmt::format("{} open files", limit_text(files));
  const auto more_files =
      fmt::format("ulimit -n {}; of a service: LimitNOFILE=", std::max<rlim_t>(needed, 4096));
  const auto threads = limit_of(RLIMIT_NPROC, "the limit of processes");
  const auto locked = limit_of(RLIMIT_MEMLOCK, "the limit of locked memory");
  if (files < needed)
    checkup.add(
        problem, "limits",
        fmt::format("{}; {} need about {}", files_text, plural(std::max(ranks, 2), "rank"), needed),
        more_files);
  else if (files < 1024)
    checkup.add(warning, "limits", files_text + ": too few for many ranks", more_files);
  if (threads < 1024)
    checkup.add(warning, "limits",
                fmt::format("{} processes and threads of this user", limit_text(threads)),
                "ulimit -u 4096: each rank has several threads");
  std::error_code none;
  const bool has_infiniband = std::filesystem::directory_iterator("/sys/class/infiniband", none) !=
                              std::filesystem::directory_iterator();
  if (has_infiniband && locked != RLIM_INFINITY)
    checkup.add(warning, "limits",
                fmt::format("{} bytes of locked memory, and an InfiniBand device is here",
                            limit_text(locked)),
                "ulimit -l unlimited: UCX and NCCL register memory with the device");
  checkup.add(ok, "limits",
              fmt::format("{}, {} processes, {} bytes of locked memory", files_text,
                          limit_text(threads), limit_text(locked)));
}

/// Allocates bytes of a memory file or of an unnamed file in a directory. Returns the error's text.
std::string try_shared_memory(const char* directory, off_t bytes) {
  const auto file = make_unnamed_file(directory);
  if (!file) return std::strerror(errno);
  const auto before = ::signal(SIGXFSZ, SIG_IGN);  // An error instead, beyond ulimit -f.
  const int error = ::posix_fallocate(file.get(), 0, bytes);
  ::signal(SIGXFSZ, before);
  return error == 0 ? std::string() : std::strerror(error);
}

void check_shared_memory(Checkup& checkup) {
  constexpr off_t tried = off_t{16} << 20;
  const auto memory_file = try_shared_memory(nullptr, tried);
  const auto in_directory = try_shared_memory("/dev/shm", tried);
  struct statvfs system {};
  const bool is_there = ::statvfs("/dev/shm", &system) == 0;
  const auto size = static_cast<std::int64_t>(system.f_blocks * system.f_frsize);
  const auto room = is_there ? fmt::format("of {}", format_bytes(size)) : std::string("missing");
  const auto bigger =
      "Mount a larger tmpfs there (docker run --shm-size=1g, or mount -o remount,size=1g /dev/shm)";
  if (!memory_file.empty())
    checkup.add(
        in_directory.empty() ? warning : problem, "memory",
        fmt::format("a memory file (memfd_create) of {} cannot be made: {}; /dev/shm, {}: {}",
                    format_bytes(tried), memory_file, room,
                    in_directory.empty() ? "used instead" : in_directory),
        "Permit memfd_create (seccomp), raise ulimit -f and the memory of the container");
  else if (!in_directory.empty())
    checkup.add(warning, "memory",
                fmt::format("/dev/shm, {}, has no room for {}: {}; tutti uses memfd_create, which "
                            "works, but NCCL and others use /dev/shm",
                            room, format_bytes(tried), in_directory),
                bigger);
  else
    checkup.add(ok, "memory", fmt::format("memfd_create works; /dev/shm {}", room));
}

void check_cpus(Checkup& checkup, const Host& host) {
  checkup.add(ok, "cpu",
              fmt::format("{} of {} ({}){}{}", std::ssize(host.cpus),
                          plural(::sysconf(_SC_NPROCESSORS_ONLN), "CPU"), host.cpuset,
                          host.model.empty() ? "" : ", ", host.model));
  checkup.facts.push_back({warning, "the processor", host.model});
  const auto quota = first_line("/sys/fs/cgroup/cpu.max");  // "150000 100000", or "max 100000".
  double time = 0;
  double period = 0;
  const auto space = quota.find(' ');
  if (space == std::string::npos) return;
  std::from_chars(quota.data(), quota.data() + space, time);
  std::from_chars(quota.data() + space + 1, quota.data() + quota.size(), period);
  if (time > 0 && period > 0 && time / period < static_cast<double>(std::ssize(host.cpus)))
    checkup.add(
        warning, "cpu",
        fmt::format("the cgroup allows {:.1f} CPUs of {}", time / period, std::ssize(host.cpus)),
        "Raise the quota of the container (docker run --cpus), or start fewer ranks");
}

/// The addresses of a host name as text; empty if it has none.
std::string resolve(const std::string& name) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  if (::getaddrinfo(name.c_str(), nullptr, &hints, &first) != 0) return {};
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(first, ::freeaddrinfo);
  std::string list;
  for (const auto* i = first; i != nullptr; i = i->ai_next) {
    std::array<char, NI_MAXHOST> text{};
    if (::getnameinfo(i->ai_addr, i->ai_addrlen, text.data(), text.size(), nullptr, 0,
                      NI_NUMERICHOST) == 0)
      list += fmt::format("{}{}", list.empty() ? "" : " ", text.data());
  }
  return list;
}

void check_network(Checkup& checkup, const std::string& name) {
  const auto addresses = resolve(name);
  checkup.add(
      addresses.empty() ? warning : ok, "network",
      fmt::format("host name {}: {}", name, addresses.empty() ? "no address" : addresses),
      addresses.empty() ? "Add it to /etc/hosts or DNS, or give ranks numeric addresses" : "");
  const char* master = std::getenv("MASTER_ADDR");
  if (master != nullptr && *master != '\0' && resolve(master).empty())
    checkup.add(problem, "network", fmt::format("MASTER_ADDR is {}, which has no address", master),
                "Set MASTER_ADDR to the name or number of rank 0's host");
}

void check_backends(Checkup& checkup) {
  std::string usable;
  for (const auto name : known_backends()) {
    const auto entry = std::ranges::find(backends(), name, &BackendEntry::name);
    std::string why = entry == backends().end() ? "not built" : entry->unavailable();
    checkup.facts.push_back(
        {warning, fmt::format("backend {}", name), why.empty() ? std::string("available") : why});
    if (why.empty()) {
      usable += fmt::format("{}{}", usable.empty() ? "" : ", ", name);
      continue;
    }
    // NCCL is missed only where a GPU is.
    const bool missed = entry != backends().end() &&
                        (name != "nccl" || std::filesystem::exists("/proc/driver/nvidia"));
    checkup.add(
        missed ? warning : off, "backends", fmt::format("{}: {}", name, why),
        missed ? "Not needed if another backend serves; `tutti info` prints the choice" : "");
  }
  checkup.add(usable == "local" ? problem : ok, "backends", "available: " + usable,
              usable == "local" ? "Ranks can only be threads: build with tcp or shm" : "");
  const auto tcp = std::ranges::find(backends(), "tcp", &BackendEntry::name);
  if (tcp == backends().end()) return;
  // The first line names the interface, or says why there is none.
  const auto details = tcp->details();
  const bool chosen = details.starts_with("interface ");
  checkup.add(chosen ? ok : problem, "network", "tcp: " + details.substr(0, details.find('\n')),
              chosen ? "" : "Correct TUTTI_IFNAME");
}

}  // namespace

Checkup check_machine(int ranks) {
  const auto host = this_host();
  Checkup checkup{.host = host.name, .pid = host.pid, .cpus = host.cpus};
  check_versions(checkup);
  check_variables(checkup);
  check_limits(checkup, ranks);
  check_cpus(checkup, host);
  check_shared_memory(checkup);
  check_network(checkup, host.name);
  check_backends(checkup);
  return checkup;
}

}  // namespace tutti::tool
