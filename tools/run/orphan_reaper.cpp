#include "run/orphan_reaper.hpp"

#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "common/exit_code.hpp"

namespace tutti::tool {
namespace {

constexpr std::size_t most_groups = 4096;

/// Reads process groups until the launcher ends, then kills them. A positive number adds a group, a
/// negative one removes it. Async-signal-safe, because the process may have had threads before the
/// fork.
[[noreturn]] void reap(int pipe) {
  ::setsid();  // The terminal's signals are for the launcher.
  // An inherited output pipe would stay open, and its reader would wait for more.
  if (::dup2(pipe, 0) < 0) ::_exit(1);
  ::syscall(__NR_close_range, 1U, ~0U, 0U);  // The C library of 2.31 has no name for it.
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
  auto [their_groups, our_groups] = make_pipe();
  // As fork(), but without SIGCHLD at its end: waitpid(-1) leaves out such a child.
  reaper_ = static_cast<pid_t>(::syscall(SYS_clone, 0UL, nullptr, nullptr, nullptr, nullptr));
  if (reaper_ == 0) reap(their_groups.get());
  if (reaper_ < 0)
    throw Failure(Exit::unavailable,
                  fmt::format("cannot start another process: {}", std::strerror(errno)));
  groups_ = std::move(our_groups);
}

OrphanReaper::~OrphanReaper() {
  groups_.close();
  while (::waitpid(reaper_, nullptr, static_cast<int>(__WCLONE)) < 0 && errno == EINTR) {
  }
}

void OrphanReaper::send(pid_t group) {
  (void)!::write(groups_.get(), &group, sizeof group);
}

}  // namespace tutti::tool
