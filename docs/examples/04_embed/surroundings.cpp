#include "surroundings.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdio>

extern char** environ;

std::vector<std::string> environment() {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) all.emplace_back(*entry);
  return all;
}

namespace {

std::set<int> members(const sigset_t& signals) {
  std::set<int> all;
  for (int signal = 1; signal < NSIG; ++signal)
    if (::sigismember(&signals, signal) == 1) all.insert(signal);
  return all;
}

}  // namespace

std::vector<std::string> signal_actions() {
  std::vector<std::string> all;
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action {};
    if (::sigaction(signal, nullptr, &action) != 0) continue;  // glibc reserves two signals.
    std::string text = std::to_string(signal) + ' ' + std::to_string(action.sa_flags) + ' ' +
                       std::to_string(reinterpret_cast<std::uintptr_t>(action.sa_sigaction));
    for (const int other : members(action.sa_mask)) text += ' ' + std::to_string(other);
    all.push_back(std::move(text));
  }
  return all;
}

std::set<int> signal_mask() {
  sigset_t mask;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  return members(mask);
}

Capture::Capture()
    : file_(::memfd_create("output", MFD_CLOEXEC)),
      saved_{::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3),
             ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3)} {
  ::dup2(file_, STDOUT_FILENO);
  ::dup2(file_, STDERR_FILENO);
}

off_t Capture::end() {
  std::fflush(nullptr);
  ::dup2(saved_[0], STDOUT_FILENO);
  ::dup2(saved_[1], STDERR_FILENO);
  const auto bytes = ::lseek(file_, 0, SEEK_END);
  for (const int fd : {file_, saved_[0], saved_[1]}) ::close(fd);
  return bytes;
}
