#include "run/orphan_reaper.hpp"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <tuple>

#include "common/exit_code.hpp"

namespace tutti::tool {
namespace {

constexpr std::size_t most_groups = 4096;

/// Reads process groups until the launcher ends, then kills them. A positive number adds a group, a
/// negative one removes it. Async-signal-safe, because the process may have had threads before the
/// fork.
[[noreturn]] void reap(int pipe, int ended) {
  ::setsid();  // The terminal's signals are for the launcher.
  // An inherited output pipe would stay open, and its reader would wait for more.
  if (::dup2(pipe, 0) < 0 || ::dup2(ended, 1) < 0) ::_exit(1);
  ::close_range(2, ~0U, 0);
  static std::array<pid_t, most_groups> groups;
  std::size_t count = 0;
  pid_t group = 0;
  for (;;) {
    const auto n = ::read(0, &group, sizeof group);
    if (n < 0 && errno == EINTR) continue;
    if (n != sizeof group) break;
    if (group > 0 && count < groups.size()) groups[count++] = group;
    for (std::size_t i = 0; group < 0 && i < count; ++i)
      if (groups[i] == -group) groups[i--] = groups[--count];
  }
  for (std::size_t i = 0; i < count; ++i) ::kill(-groups[i], SIGKILL);
  ::_exit(0);
}

}  // namespace

OrphanReaper::OrphanReaper() {
  Descriptor their_groups, their_ended;
  std::tie(their_groups, groups_) = make_pipe();
  std::tie(ended_, their_ended) = make_pipe();
  const pid_t middle = ::fork();
  if (middle == 0) {
    const pid_t reaper = ::fork();
    if (reaper == 0) reap(their_groups.get(), their_ended.get());
    ::_exit(reaper > 0 ? 0 : 1);
  }
  int status = 1;
  while (middle > 0 && ::waitpid(middle, &status, 0) < 0 && errno == EINTR) {
  }
  if (status != 0)
    throw Failure(Exit::unavailable,
                  fmt::format("cannot start another process: {}", std::strerror(errno)));
}

OrphanReaper::~OrphanReaper() {
  groups_.close();
  char nothing = 0;
  while (::read(ended_.get(), &nothing, 1) < 0 && errno == EINTR) {
  }
}

void OrphanReaper::send(pid_t group) {
  (void)!::write(groups_.get(), &group, sizeof group);
}

}  // namespace tutti::tool
