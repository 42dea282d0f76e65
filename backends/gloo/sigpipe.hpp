#pragma once

#include <csignal>
#include <ctime>

namespace tutti::backend::gloo {

/// Blocks SIGPIPE on this thread and discards a pending SIGPIPE. Gloo writes without MSG_NOSIGNAL,
/// so a write to a dead peer would end the process.
class BlockSigpipe {
 public:
  BlockSigpipe() noexcept {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~BlockSigpipe() {
    if (sigismember(&before_, SIGPIPE) == 1) return;  // Blocked by the program: keep it pending.
    const timespec now{};
    while (sigtimedwait(&pipe_, nullptr, &now) == SIGPIPE) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  BlockSigpipe(const BlockSigpipe&) = delete;
  BlockSigpipe& operator=(const BlockSigpipe&) = delete;

 private:
  sigset_t pipe_{};
  sigset_t before_{};
};

}  // namespace tutti::backend::gloo
