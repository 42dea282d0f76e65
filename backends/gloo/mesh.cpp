#include "mesh.hpp"

#include <algorithm>
#include <chrono>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/unbound_buffer.h>

namespace tutti::backend::gloo {

using namespace std::chrono_literals;

Mesh::Mesh(const MeshInit& init)
    : rank_(init.rank), size_(init.size), agreement_(nullptr, init.rank) {
  if (size_ == 1) {  // Nobody to connect to.
    agreement_ = Agreement(make_memory_store(), 0);
    return;
  }
  auto made = rendezvous(init);
  interface_ = std::move(made.interface);
  agreement_ = Agreement(std::move(made.store), init.rank);
  device_ = std::move(made.device);
  context_ = std::move(made.context);
  sockets_ = std::make_shared<const Sockets>(std::move(made.sockets));
}

std::shared_ptr<Mesh> Mesh::make(const MeshInit& init) {
  auto mesh = std::make_shared<Mesh>(init);
  if (mesh->sockets_ != nullptr) mesh->watch(mesh);
  return mesh;
}

void Mesh::watch(std::weak_ptr<Mesh> self) {
  const std::lock_guard lock(mutex_);  // Its thread may fail the mesh before this has returned.
  hangups_ = std::make_unique<Hangups>(sockets_, [self = std::move(self)](std::size_t i) {
    const auto mesh = self.lock();  // Whoever is told of a failure may destroy the group.
    return mesh == nullptr || mesh->ended(i);
  });
}

Mesh::~Mesh() {
  if (hangups_ != nullptr) hangups_->join();
  if (reaper_.joinable()) reaper_.join();
  if (context_ == nullptr) return;
  agreement_.leave();
  sockets_->drain();
}

bool Mesh::ended(std::size_t connection) noexcept {
  const int peer = static_cast<int>(connection) + (static_cast<int>(connection) < rank_ ? 0 : 1);
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::up) return true;
    if (messages_ == nullptr) return false;
  }
  const auto why = left_.contains(peer) ? Ending::left : agreement_.why_ended(peer);
  if (why == Ending::left) left_.insert(peer);
  if (why != Ending::late && !waits_in_vain(connection, peer)) return false;
  fail({.cause = Error(Errc::peer_lost, fmt::format("the connection to rank {} ended", peer),
                       {.rank = peer}),
        .lost = peer});
  return true;
}

/// What could still arrive has time to: of a rank that left, all that it sent, which Gloo may not
/// have read yet; when a rank failed, what the others send to one another for a call that it has
/// not failed.
bool Mesh::waits_in_vain(std::size_t connection, int peer) noexcept {
  const bool left = left_.contains(peer);
  const std::lock_guard lock(mutex_);
  if (sockets_ == nullptr) return false;
  const auto now = std::chrono::steady_clock::now();
  const auto patience = left && sockets_->has_unread(connection) ? 1000ms : 50ms;
  for (auto* m = messages_; m != nullptr; m = m->after_) {
    if (left && m->peer_ != peer) continue;
    if (!m->doubted_) m->doubted_ = now;
    if (now - *m->doubted_ > patience) return true;
  }
  return false;
}

Error Mesh::fail(const Report& report) noexcept {
  {
    std::unique_lock lock(mutex_);
    if (state_ != State::up) {
      lock.unlock();
      if (!report.call.empty()) agreement_.tell(report.call);  // Whoever was first may ask.
      lock.lock();
      settled_.wait(lock, [&] { return state_ == State::failed; });
      return *cause_;
    }
    state_ = State::failing;
  }
  const bool first = agreement_.announce(report);
  {
    const std::lock_guard lock(mutex_);
    if (sockets_ != nullptr) sockets_->shut_down();
    for (auto* m = messages_; m != nullptr; m = m->after_) m->cancel();
    try {
      // Destroying a pair takes a turn of Gloo's I/O loop, and that thread spins until then.
      reaper_ = std::thread([context = std::move(context_)]() mutable {
        while (context.use_count() > 1) std::this_thread::sleep_for(1ms);
        context.reset();
      });
    } catch (...) {  // No thread to be had: it went with the lambda, here.
    }
    sockets_.reset();
    if (hangups_ != nullptr) hangups_->stop();
  }
  const Error cause = agreement_.settle(report, first);
  {
    const std::lock_guard lock(mutex_);
    cause_ = cause;
    state_ = State::failed;
  }
  settled_.notify_all();
  const std::lock_guard lock(listeners_mutex_);
  for (auto it = listeners_.begin(); it != listeners_.end();) {
    const auto& listener = *it++;
    listener(cause);
  }
  return cause;
}

Error Mesh::await_failure(const Report& report) noexcept {
  if (!report.call.empty()) agreement_.tell(report.call);
  {
    std::unique_lock lock(mutex_);
    settled_.wait_for(lock, 2s, [&] { return state_ == State::failed; });
    if (cause_) return *cause_;
  }
  return fail(report);
}

std::optional<Error> Mesh::failure() const {
  const std::lock_guard lock(mutex_);
  return cause_;
}

Mesh::Listeners::iterator Mesh::listen(Listener listener) {
  const std::lock_guard lock(listeners_mutex_);
  if (const auto cause = failure()) listener(*cause);
  return listeners_.insert(listeners_.end(), std::move(listener));
}

void Mesh::forget(Listeners::iterator listener) {
  const std::lock_guard lock(listeners_mutex_);
  listeners_.erase(listener);
}

Mesh::Message::Message(Mesh& mesh, int peer, void* data, std::size_t bytes)
    : mesh_(mesh), peer_(peer) {
  const std::lock_guard lock(mesh.mutex_);
  if (mesh.state_ != State::up) throw Trouble(Trouble::Kind::failed, peer);
  buffer_ = mesh.context_->createUnboundBuffer(data, bytes);
  after_ = mesh.messages_;
  if (after_ != nullptr) after_->before_ = this;
  mesh.messages_ = this;
}

Mesh::Message::~Message() {
  const std::lock_guard lock(mesh_.mutex_);
  (before_ == nullptr ? mesh_.messages_ : before_->after_) = after_;
  if (after_ != nullptr) after_->before_ = before_;
  // Waits for Gloo's I/O thread to let go, if it is at this buffer now.
  buffer_.reset();
}

void Mesh::Message::send(std::uint64_t slot) {
  sends_ = true;
  post(slot);
}

void Mesh::Message::recv(std::uint64_t slot) {
  post(slot);
}

void Mesh::Message::post(std::uint64_t slot) {
  try {
    if (sends_)
      buffer_->send(peer_, slot);
    else
      buffer_->recv(peer_, slot);
  } catch (const std::exception& error) {
    throw closed(error);
  }
}

void Mesh::Message::wait(Deadline limit) {
  constexpr auto longest = std::chrono::milliseconds(100h);  // Gloo adds it to a clock.
  const auto left = limit.remaining();
  const auto time = left >= longest ? longest
                                    : std::max<std::chrono::milliseconds>(
                                          std::chrono::ceil<std::chrono::milliseconds>(left), 1ms);
  try {
    if (sends_ ? buffer_->waitSend(nullptr, time) : buffer_->waitRecv(nullptr, time)) return;
  } catch (const std::exception& error) {  // A timeout of Gloo's, or the pair was closed.
    if (limit.expired()) throw Trouble(Trouble::Kind::late, peer_);
    throw closed(error);
  }
  throw Trouble(Trouble::Kind::failed, peer_);
}

/// The pair is closed. The timeout of one call closes all pairs of Gloo's context; the others see
/// this text (transport/tcp/context.cc).
Trouble Mesh::Message::closed(const std::exception& why) const {
  const bool another =
      std::string_view(why.what()).find("Application timeout") != std::string_view::npos;
  return {another ? Trouble::Kind::failed : Trouble::Kind::lost, peer_};
}

void Mesh::Message::cancel() noexcept {
  buffer_->abortWaitRecv();
  buffer_->abortWaitSend();
}

}  // namespace tutti::backend::gloo
