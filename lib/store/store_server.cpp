#include <tutti/store/store_server.hpp>

#include <pthread.h>
#include <signal.h>

#include <system_error>
#include <thread>

#include "store/server_loop.hpp"
#include "values/fail.hpp"
#include "values/fork_guard.hpp"

namespace [[gnu::visibility("default")]] tutti {
namespace {

/// The embedder's signals stay on the embedder's threads: one that is started now gets none.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~NoSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace

class StoreServer::Impl {
 public:
  explicit Impl(const StoreServerOptions& options) : loop(options) {
    const NoSignals no_signals;
    try {
      thread = std::thread([this] { loop.run(); });
    } catch (const std::system_error& error) {
      internal::failf(Errc::resource_exhausted, "store server: cannot start its thread: {}",
                      error.what());
    }
  }
  ~Impl() {
    loop.stop();
    thread.join();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  void refuse_child() const {
    if (guard.forked())
      fail(Errc::forked, "the store server was made before fork(); it serves from the parent");
  }

  internal::ForkGuard guard;
  internal::StoreServerLoop loop;
  std::thread thread;
};

StoreServer::StoreServer(const StoreServerOptions& options)
    : impl_(std::make_unique<Impl>(options)) {}

StoreServer::~StoreServer() {
  // A forked child has neither the thread nor a right to the connections.
  if (impl_->guard.forked()) (void)impl_.release();
}

int StoreServer::port() const noexcept {
  return impl_->loop.port();
}

int StoreServer::clients() const {
  impl_->refuse_child();
  return impl_->loop.clients();
}

bool StoreServer::wait_until_left(Deadline deadline) {
  impl_->refuse_child();
  return impl_->loop.wait_until_left(deadline);
}

}  // namespace tutti
