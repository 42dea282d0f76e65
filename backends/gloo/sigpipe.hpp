#pragma once

#include <csignal>
#include <ctime>

namespace tutti::backend::gloo {

/// Gloo writes without MSG_NOSIGNAL: when a peer has died the kernel sends SIGPIPE to the writing
/// thread, which would end the process. Blocks it on this thread and takes back one that came.
class BlockSigpipe {
 public:
  BlockSigpipe() noexcept {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~BlockSigpipe() {
    if (sigismember(&before_, SIGPIPE) == 1) return;  // Whoever blocked it wants to see it.
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
