#include "connection_watcher.hpp"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>
#include <vector>

#include "values/fail.hpp"

namespace tutti::backend::gloo {
namespace {

/// The pause between two calls of ended() for the same connection.
constexpr int again_ms = 20;

/// The connections to watch. Made before the thread, which must not fail.
struct Watched {
  std::shared_ptr<const Sockets> sockets;
  std::vector<pollfd> events{};          // The event that stops the thread comes first.
  std::vector<std::size_t> open_ends{};  // Has room for all.
};

Watched watched(std::shared_ptr<const Sockets> sockets, int stop) {
  Watched all{.sockets = std::move(sockets), .events = {{stop, POLLIN, 0}}};
  for (const int descriptor : all.sockets->descriptors())
    all.events.push_back({descriptor, POLLRDHUP, 0});
  all.open_ends.reserve(all.events.size());
  return all;
}

void watch(Watched& watched, const std::function<bool(std::size_t)>& ended,
           const std::function<void()>& look, int look_ms) {
  auto& events = watched.events;
  auto& open_ends = watched.open_ends;
  for (;;) {
    const int n = ::poll(events.data(), events.size(),
                         open_ends.empty() ? look_ms : std::min(look_ms, again_ms));
    if ((n < 0 && errno != EINTR) || events[0].revents != 0) return;
    for (std::size_t i = 1; n > 0 && i < events.size(); ++i) {
      if (events[i].fd < 0 || events[i].revents == 0) continue;
      events[i].fd = -1;
      open_ends.push_back(i - 1);
    }
    // Not `ended` itself, of which the algorithm makes copies.
    std::erase_if(open_ends, [&](std::size_t i) { return ended(i); });
    look();
  }
}

}  // namespace

ConnectionWatcher::ConnectionWatcher(std::shared_ptr<const Sockets> sockets,
                                     std::function<bool(std::size_t)> ended,
                                     std::function<void()> look, std::chrono::milliseconds pause)
    : stop_(std::make_shared<mesh::Event>()) {
  try {
    thread_ = std::thread(
        [all = watched(std::move(sockets), stop_->descriptor()), stop = stop_,
         ended = std::move(ended), look = std::move(look),
         pause = static_cast<int>(pause.count())]() mutable { watch(all, ended, look, pause); });
  } catch (const std::system_error& error) {
    internal::failf(Errc::resource_exhausted, "gloo: cannot start the connection watcher: {}",
                    error.what());
  }
}

ConnectionWatcher::~ConnectionWatcher() {
  join();
}

void ConnectionWatcher::join() noexcept {
  stop();
  if (!thread_.joinable()) return;
  if (thread_.get_id() == std::this_thread::get_id())
    thread_.detach();  // ended() destroyed the last reference to the mesh.
  else
    thread_.join();
}

void ConnectionWatcher::stop() noexcept {
  stop_->set();
}

}  // namespace tutti::backend::gloo
