#include "common/signals.hpp"

#include <utility>

namespace tutti::tool {

Signals::Signals(std::function<void(int)> handle) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &set, &before_);
  thread_ = std::jthread([set, handle = std::move(handle)](const std::stop_token& stop) {
    int signal = 0;
    while (sigwait(&set, &signal) == 0 && !stop.stop_requested()) handle(signal);
  });
}

Signals::~Signals() {
  thread_.request_stop();
  pthread_kill(thread_.native_handle(), SIGTERM);  // Ends the wait of the thread.
  thread_.join();
  // A signal that is still pending gets its default effect here.
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace tutti::tool
