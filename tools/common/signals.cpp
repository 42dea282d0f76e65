#include "common/signals.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

namespace tutti::tool {
namespace {

int checked(int descriptor, const char* what) {
  if (descriptor < 0) throw std::system_error(errno, std::generic_category(), what);
  return descriptor;
}

}  // namespace

Signals::Signals(std::function<void(int)> handle) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  signals_ = checked(signalfd(-1, &set, SFD_CLOEXEC), "signalfd");
  end_ = checked(eventfd(0, EFD_CLOEXEC), "eventfd");
  pthread_sigmask(SIG_BLOCK, &set, &before_);
  thread_ = std::thread([this, handle = std::move(handle)] {
    while (true) {
      std::array<pollfd, 2> ready{{{end_, POLLIN, 0}, {signals_, POLLIN, 0}}};
      if (poll(ready.data(), ready.size(), -1) < 0) continue;
      if (ready[0].revents != 0) return;
      signalfd_siginfo info{};
      if (read(signals_, &info, sizeof info) == sizeof info)
        handle(static_cast<int>(info.ssi_signo));
    }
  });
}

Signals::~Signals() {
  const std::uint64_t one = 1;
  while (write(end_, &one, sizeof one) < 0 && errno == EINTR) {
  }
  thread_.join();
  close(end_);
  close(signals_);
  // A signal that was not handled in time takes its usual effect here.
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace tutti::tool
