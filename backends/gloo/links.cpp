#include "gloo/links.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <exception>
#include <new>
#include <string_view>
#include <utility>

#include "sigpipe.hpp"
#include "values/hash.hpp"

namespace tutti::backend::gloo {

using namespace std::chrono_literals;

std::chrono::milliseconds timeout_of(Deadline limit) {
  constexpr std::chrono::milliseconds longest = 100h;
  const auto left = limit.remaining();
  if (left >= longest) return longest;
  return std::max<std::chrono::milliseconds>(std::chrono::ceil<std::chrono::milliseconds>(left),
                                             1ms);
}

Links::Links(std::shared_ptr<::gloo::transport::Context> context, std::vector<mesh::Socket> sockets,
             std::function<void(int peer)> ended)
    : context_(std::move(context)), sockets_(std::move(sockets)), ended_(std::move(ended)) {
  events_.push_back({event_.descriptor(), POLLIN, 0});
  for (const auto& socket : sockets_) {
    descriptors_.push_back(socket.get());
    events_.push_back({socket.get(), POLLRDHUP, 0});
  }
}

namespace {

/// When one call times out, Gloo closes all pairs of the context, and the other calls get this text
/// (transport/tcp/context.cc).
Links::Outcome outcome_of(const std::exception& error) {
  const bool another =
      std::string_view(error.what()).find("Application timeout") != std::string_view::npos;
  return another ? Links::Outcome::closed : Links::Outcome::lost;
}

}  // namespace

template <typename Post>
void Links::post(Request& request, int peer, void* data, std::size_t bytes, const Post& post) {
  request.peer = peer;
  {
    const std::lock_guard lock(buffers_mutex_);
    request.buffer = context_->createUnboundBuffer(data, bytes);
  }
  const BlockSigpipe quiet;
  try {
    post(*request.buffer);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    request.end = outcome_of(error);
  }
}

void Links::send(Request& request, int peer, std::uint64_t slot, void* data, std::size_t bytes,
                 bool) {
  request.sends = true;
  post(request, peer, data, bytes, [&](auto& buffer) { buffer.send(peer, slot); });
}

void Links::recv(Request& request, int peer, std::uint64_t slot, void* data, std::size_t bytes) {
  post(request, peer, data, bytes, [&](auto& buffer) { buffer.recv(peer, slot); });
}

Links::Outcome Links::wait(Request& request, Deadline limit, const std::atomic<bool>& cancelled) {
  // Relaxed: post() and cancel() have held the same lock since.
  if (cancelled.load(std::memory_order_relaxed)) return Outcome::cancelled;
  if (request.end) return *request.end;
  auto& buffer = *request.buffer;
  const auto time = timeout_of(limit);
  try {
    if (!(request.sends ? buffer.waitSend(nullptr, time) : buffer.waitRecv(nullptr, time)))
      return Outcome::cancelled;
    request.received = buffer.size;
    return Outcome::ended;
  } catch (const std::exception& error) {
    return limit.expired() ? Outcome::late : outcome_of(error);
  }
}

void Links::cancel(Request& request) noexcept {
  const std::lock_guard lock(buffers_mutex_);
  if (request.buffer == nullptr) return;
  request.buffer->abortWaitRecv();
  request.buffer->abortWaitSend();
}

bool Links::end_refused(std::uint64_t call, std::span<const int> peers, Deadline limit) {
  // All ranks have left the call, so no rank posts further messages of it. On each connection, the
  // peer's earlier messages arrive before its byte of round 1, and this rank's replies before its
  // byte of round 2.
  std::array<std::byte, 2> bytes{};
  const std::atomic<bool> cancelled{false};
  for (const std::uint64_t round : {std::uint64_t{1}, std::uint64_t{2}}) {
    internal::Hash hash;
    hash.add(call);
    hash.add(~round);
    std::vector<Request> requests(2 * peers.size());
    auto request = requests.begin();
    for (const int peer : peers) {
      if (peer == context_->rank) continue;
      recv(*request++, peer, hash.value(), &bytes[0], 1);
      send(*request++, peer, hash.value(), &bytes[1], 1, true);
    }
    requests.erase(request, requests.end());
    for (auto& posted : requests)
      if (wait(posted, limit, cancelled) != Outcome::ended) return false;
  }
  return true;
}

namespace {

/// Gives access to the sends that peers have announced. Gloo 2022-05-18 to this day keeps them in
/// protected members of transport/context.h, and has no function that asks for them: its receive
/// from any rank takes one slot for all ranks, but slots here have the sender's number.
struct AnnouncedSends : ::gloo::transport::Context {
  static bool has(::gloo::transport::Context& context, int peer, std::uint64_t slot) {
    const std::lock_guard lock(context.*&AnnouncedSends::mutex_);
    const auto& all = context.*&AnnouncedSends::pendingOperations_;
    return std::ranges::any_of(all, [&](const auto& of_slot) {
      return of_slot.slot == slot && std::ranges::count(of_slot.getSendList(), peer) != 0;
    });
  }
};

}  // namespace

bool Links::has_arrived(int peer, std::uint64_t slot) {
  return AnnouncedSends::has(*context_, peer, slot);
}

void Links::attend(std::chrono::milliseconds time) {
  if (::poll(events_.data(), events_.size(), static_cast<int>(time.count())) <= 0) return;
  for (std::size_t r = 0; r < sockets_.size(); ++r) {
    auto& event = events_[1 + r];
    if (event.fd < 0 || event.revents == 0) continue;
    event.fd = -1;
    ended_(static_cast<int>(r));
  }
}

void Links::close() noexcept {
  for (const int descriptor : descriptors_) ::shutdown(descriptor, SHUT_RDWR);
  interrupt();
}

}  // namespace tutti::backend::gloo
