#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "inspect/checkup.hpp"
#include "run/child.hpp"
#include "run/ranks.hpp"

namespace tutti::tool {
namespace {

/// In seconds; longer than the timeout of the threads' group.
constexpr unsigned most_time = 30;

/// The failure of two threads that reduce an array; empty after success.
std::string reduce_in_threads(const BackendEntry& entry) {
  const GroupOptions group{
      .backend = std::string(entry.name), .size = 2, .timeout = std::chrono::seconds(10)};
  const auto outcomes = run_threads(
      group, {},
      [](Rank& rank) {
        std::vector<float> x(10'000, 1.0F);
        rank.group.all_reduce(x);
      },
      DevicePlacement({}, entry));
  for (const Outcome& outcome : outcomes)
    if (outcome.failed) return outcome.failed->text;
  return {};
}

/// The same in a child without stdout and stderr: libraries print warnings, and UCX ends a process
/// that lacks descriptors. The time is limited, because a driver may not answer.
std::string try_backend(const BackendEntry& entry) {
  auto [reader, writer] = make_pipe();
  const pid_t child = ::fork();
  if (child < 0) return fmt::format("cannot start a process: {}", std::strerror(errno));
  if (child == 0) {
    ::alarm(most_time);
    const Descriptor nowhere(::open("/dev/null", O_WRONLY | O_CLOEXEC));
    ::dup2(nowhere.get(), STDOUT_FILENO);
    ::dup2(nowhere.get(), STDERR_FILENO);
    std::string failure;
    try {
      failure = reduce_in_threads(entry);
    } catch (const std::exception& error) {
      failure = error.what();
    }
    (void)!::write(writer.get(), failure.data(), std::min<std::size_t>(failure.size(), 4096));
    ::_exit(0);
  }
  writer.close();
  std::string failure;
  std::array<char, 4096> bytes{};
  for (ssize_t n = 1; n != 0;) {
    n = ::read(reader.get(), bytes.data(), bytes.size());
    if (n > 0) failure.append(bytes.data(), static_cast<std::size_t>(n));
    if (n < 0 && errno != EINTR) break;
  }
  int status = 0;
  if (::waitpid(child, &status, 0) != child)
    return fmt::format("cannot wait for a process: {}", std::strerror(errno));
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
    return fmt::format("they did not end within {} s", most_time);
  if (WIFSIGNALED(status))
    return fmt::format("the process was ended by signal {} ({})", WTERMSIG(status),
                       ::strsignal(WTERMSIG(status)));
  return failure;
}

}  // namespace

void try_backends(Checkup& checkup) {
  std::string worked;
  std::map<std::string, std::string> failures;
  for (const BackendEntry& entry : backends()) {
    // "hier" uses the other backends.
    if (!entry.serves({}) || !entry.unavailable().empty() || entry.name == "hier") continue;
    if (entry.is_beyond_tcp != nullptr && !entry.is_beyond_tcp()) continue;  // It has no network.
    const auto failure = try_backend(entry);
    auto& list = failure.empty() ? worked : failures[failure];
    list += fmt::format("{}{}", list.empty() ? "" : ", ", entry.name);
  }
  for (const auto& [failure, backends] : failures)
    checkup.add(Level::problem, "group",
                fmt::format("two threads cannot use {}: {}", backends, failure),
                "Correct what the text names, or choose another backend by name");
  if (!worked.empty())
    checkup.add(Level::ok, "group", "two threads reduced an array over " + worked);
}

}  // namespace tutti::tool
