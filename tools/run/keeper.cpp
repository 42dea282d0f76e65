#include "run/keeper.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "common/exit_code.hpp"

namespace tutti::tool {
namespace {

constexpr std::size_t most_groups = 4096;

/// Reads process groups until the other side is gone, positive ones to kill then, negative ones to
/// forget. Async-signal-safe: the process it runs in may have had threads before the fork.
[[noreturn]] void keep(int words, int ended) {
  ::setsid();  // What the terminal sends to the launcher is not for this one.
  // Nobody shall wait for the end of an output that this one holds open.
  if (::dup2(words, 0) < 0 || ::dup2(ended, 1) < 0) ::_exit(1);
  ::close_range(2, ~0U, 0);
  static std::array<pid_t, most_groups> groups;
  std::size_t count = 0;
  pid_t word = 0;
  for (;;) {
    const auto n = ::read(0, &word, sizeof word);
    if (n < 0 && errno == EINTR) continue;
    if (n != sizeof word) break;
    if (word > 0 && count < groups.size()) groups[count++] = word;
    for (std::size_t i = 0; word < 0 && i < count; ++i)
      if (groups[i] == -word) groups[i--] = groups[--count];
  }
  for (std::size_t i = 0; i < count; ++i) ::kill(-groups[i], SIGKILL);
  ::_exit(0);
}

}  // namespace

Keeper::Keeper() {
  std::array<int, 2> words{};
  std::array<int, 2> ended{};
  if (::pipe2(words.data(), O_CLOEXEC) != 0 || ::pipe2(ended.data(), O_CLOEXEC) != 0)
    throw Failure(Exit::unavailable, fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  const Descriptor theirs_words(words[0]);
  const Descriptor theirs_ended(ended[1]);
  words_ = Descriptor(words[1]);
  ended_ = Descriptor(ended[0]);
  const pid_t middle = ::fork();
  if (middle == 0) {
    const pid_t keeper = ::fork();
    if (keeper == 0) keep(theirs_words.get(), theirs_ended.get());
    ::_exit(keeper > 0 ? 0 : 1);
  }
  int status = 1;
  while (middle > 0 && ::waitpid(middle, &status, 0) < 0 && errno == EINTR) {
  }
  if (status != 0)
    throw Failure(Exit::unavailable,
                  fmt::format("cannot start another process: {}", std::strerror(errno)));
}

Keeper::~Keeper() {
  words_.close();
  char nothing = 0;
  while (::read(ended_.get(), &nothing, 1) < 0 && errno == EINTR) {
  }
}

void Keeper::watch(pid_t group) {
  tell(group);
}

void Keeper::forget(pid_t group) {
  tell(-group);
}

void Keeper::tell(pid_t word) {
  (void)!::write(words_.get(), &word, sizeof word);
}

}  // namespace tutti::tool
