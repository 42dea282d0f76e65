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

namespace {

/// The first and the longest interval between polls of the store for refused calls.
constexpr std::chrono::nanoseconds first_look = 100ms;
constexpr std::chrono::nanoseconds longest_look = 1s;

}  // namespace

Mesh::Mesh(const MeshInit& init, Connections made)
    : rank_(init.rank),
      size_(init.size),
      checked_(init.checked),
      interface_(std::move(made.interface)),
      agreement_(made.store, init.rank, init.size),
      device_(std::move(made.device)),
      context_(std::move(made.context)) {
  if (size_ > 1) sockets_ = std::make_shared<const Sockets>(std::move(made.sockets));
}

std::shared_ptr<Mesh> Mesh::make(const MeshInit& init) {
  Connections none{.store = make_memory_store()};  // One rank has no peers.
  auto mesh = std::make_shared<Mesh>(init, init.size == 1 ? std::move(none) : rendezvous(init));
  if (mesh->sockets_ != nullptr) mesh->watch(mesh);
  return mesh;
}

void Mesh::watch(std::weak_ptr<Mesh> self) {
  // The watcher's thread may fail the mesh before this function has returned.
  const std::lock_guard lock(mutex_);
  const auto ended = [self](std::size_t i) {
    // Keeps the mesh alive: a listener of its failure may destroy the group.
    const auto mesh = self.lock();
    return mesh == nullptr || mesh->ended(i);
  };
  // Holds no reference between calls, because the destructor waits for this thread. The weak
  // pointer has expired when the destructor runs on this thread.
  const auto look = [this, self] {
    if (!self.expired()) this->look();
  };
  connection_watcher_ = std::make_unique<ConnectionWatcher>(sockets_, ended, look);
}

Mesh::~Mesh() {
  if (connection_watcher_ != nullptr) connection_watcher_->join();
  if (reaper_.joinable()) reaper_.join();
  if (context_ == nullptr) return;
  agreement_.leave(0);
  sockets_->drain();
  // Gloo's I/O thread closes the pairs of ended connections at once. Destroying a pair that is open
  // takes until the thread's next tick, up to 10 ms (transport/tcp/loop.cc).
  sockets_->shut_down();
}

bool Mesh::ended(std::size_t connection) noexcept {
  const int peer = static_cast<int>(connection) + (static_cast<int>(connection) < rank_ ? 0 : 1);
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::up) return true;
    if (messages_ == nullptr && !checked_) return false;
  }
  bool left = left_.contains(peer);
  bool late = false;
  bool store_ended = false;
  try {
    left = left || agreement_.left(peer);
    late = !left && agreement_.collecting();
  } catch (...) {  // The program may supply the store, so it may throw any type.
    store_ended = true;
  }
  if (left) left_.insert(peer);
  // In checked mode a call waits for the records of all ranks before it sends a message.
  if (checked_ && !left && !store_ended) {
    const auto now = std::chrono::steady_clock::now();
    if (!died_) died_ = now;
    late = late || now - *died_ > 1000ms;
  }
  // A rank that left fails only its own messages. Without the store the rank may have left.
  const auto only = left || store_ended ? std::optional<int>(peer) : std::nullopt;
  if (!late && !waits_in_vain(only, only ? 1000ms : 50ms)) return false;
  fail({.cause = lost(peer, peer)});
  return true;
}

/// True when a message has been doubtful for `patience`, so that it is unlikely to arrive. Until
/// then it may: the last bytes of a rank that left may still be in the kernel's buffer, and after a
/// failure peers may finish an earlier call.
bool Mesh::waits_in_vain(std::optional<int> only, std::chrono::nanoseconds patience) noexcept {
  const std::lock_guard lock(mutex_);
  if (sockets_ == nullptr) return false;
  const auto now = std::chrono::steady_clock::now();
  for (auto* m = messages_; m != nullptr; m = m->after_) {
    if (only && m->peer_ != *only) continue;
    if (!m->doubted_) m->doubted_ = now;
    if (now - *m->doubted_ > patience) return true;
  }
  return false;
}

Error Mesh::lost(int peer, int rank) const {
  std::string text = fmt::format("the connection to rank {} ended: ", rank);
  try {
    if (agreement_.left(peer))
      text = fmt::format("rank {} has left the group", rank);
    else
      text += "its process has died, or its host cannot be reached";
  } catch (...) {
    // The connection may have ended because the rank with the store died.
    text += "the store has ended too, so the first rank that died is not known";
    rank = -1;
  }
  return {Errc::peer_lost, text, {.rank = rank}};
}

void Mesh::look() noexcept {
  const auto now = std::chrono::steady_clock::now();
  if (now < next_look_) return;
  {
    const std::lock_guard lock(mutex_);
    bool waits = false;
    for (auto* m = messages_; m != nullptr; m = m->after_)
      waits = std::exchange(m->looked_at_, true) || waits;
    look_pause_ = waits ? std::min(2 * look_pause_, longest_look) : first_look;
    next_look_ = now + look_pause_;
    if (!waits) return;
  }
  if (agreement_.new_refusals().empty()) return;
  const std::lock_guard lock(mutex_);
  for (auto* m = messages_; m != nullptr; m = m->after_)
    if (agreement_.refusal_of(m->call_) != nullptr) m->cancel();
}

Error Mesh::fail(const internal::Failure& failure) noexcept {
  {
    std::unique_lock lock(mutex_);
    if (state_ != State::up) {
      lock.unlock();
      if (!failure.status.call.empty()) agreement_.publish_status(failure.status);
      lock.lock();
      settled_.wait(lock, [&] { return state_ == State::failed; });
      return *cause_;
    }
    state_ = State::failing;
  }
  const bool first = agreement_.announce(failure);
  {
    const std::lock_guard lock(mutex_);
    if (sockets_ != nullptr) sockets_->shut_down();
    for (auto* m = messages_; m != nullptr; m = m->after_) m->cancel();
    try {
      // The thread destroys the context when nothing else uses it. Otherwise destroying a pair
      // would block until Gloo's I/O thread lets it go; that thread spins meanwhile.
      reaper_ = std::thread([context = std::move(context_)]() mutable {
        while (context.use_count() > 1) std::this_thread::sleep_for(1ms);
        context.reset();
      });
    } catch (...) {  // Without a thread the lambda destroys the context here.
    }
    sockets_.reset();
    if (connection_watcher_ != nullptr) connection_watcher_->stop();
  }
  const Error cause = agreement_.settle(failure, first);
  decltype(listeners_) listeners;
  {
    const std::lock_guard lock(mutex_);
    cause_ = cause;
    state_ = State::failed;
    listeners.swap(listeners_);
  }
  settled_.notify_all();
  for (const auto& weak : listeners)
    if (const auto listener = weak.lock()) (*listener)(cause);
  return cause;
}

Error Mesh::await_failure(const internal::Failure& failure) noexcept {
  if (!failure.status.call.empty()) agreement_.publish_status(failure.status);
  {
    std::unique_lock lock(mutex_);
    settled_.wait_for(lock, 2s, [&] { return state_ == State::failed; });
    if (cause_) return *cause_;
  }
  return fail(failure);
}

std::optional<Error> Mesh::failure() const {
  const std::lock_guard lock(mutex_);
  return cause_;
}

void Mesh::listen(const std::shared_ptr<const Listener>& listener) {
  {
    const std::lock_guard lock(mutex_);
    if (!cause_) {
      std::erase_if(listeners_, [](const auto& weak) { return weak.expired(); });
      listeners_.push_back(listener);
      return;
    }
  }
  (*listener)(*cause_);
}

Mesh::Message::Message(Mesh& mesh, int peer, void* data, std::size_t bytes, std::uint64_t call)
    : mesh_(mesh), peer_(peer), call_(call) {
  const std::lock_guard lock(mesh.mutex_);
  if (mesh.state_ != State::up) throw TransportError(TransportError::Kind::failed, peer);
  if (mesh.agreement_.refusal_of(call) != nullptr)
    throw TransportError(TransportError::Kind::refused, peer);
  buffer_ = mesh.context_->createUnboundBuffer(data, bytes);
  after_ = mesh.messages_;
  if (after_ != nullptr) after_->before_ = this;
  mesh.messages_ = this;
}

Mesh::Message::~Message() {
  const std::lock_guard lock(mesh_.mutex_);
  (before_ == nullptr ? mesh_.messages_ : before_->after_) = after_;
  if (after_ != nullptr) after_->before_ = before_;
  // Waits until Gloo's I/O thread has released this buffer.
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
  // Gloo adds the timeout to a clock, which must not overflow.
  constexpr auto longest = std::chrono::milliseconds(100h);
  const auto left = limit.remaining();
  const auto time = left >= longest ? longest
                                    : std::max<std::chrono::milliseconds>(
                                          std::chrono::ceil<std::chrono::milliseconds>(left), 1ms);
  try {
    if (sends_ ? buffer_->waitSend(nullptr, time) : buffer_->waitRecv(nullptr, time)) return;
  } catch (const std::exception& error) {  // Gloo timed out, or the pair is closed.
    if (limit.expired()) throw TransportError(TransportError::Kind::late, peer_);
    throw closed(error);
  }
  const std::lock_guard lock(mesh_.mutex_);
  const bool refused = mesh_.state_ == State::up && mesh_.agreement_.refusal_of(call_) != nullptr;
  throw TransportError(refused ? TransportError::Kind::refused : TransportError::Kind::failed,
                       peer_);
}

/// Returns the error of a message whose pair is closed. When one call times out, Gloo closes all
/// pairs of the context, and the other calls get this text (transport/tcp/context.cc).
TransportError Mesh::Message::closed(const std::exception& why) const {
  const bool another =
      std::string_view(why.what()).find("Application timeout") != std::string_view::npos;
  return {another ? TransportError::Kind::failed : TransportError::Kind::lost, peer_};
}

void Mesh::Message::cancel() noexcept {
  buffer_->abortWaitRecv();
  buffer_->abortWaitSend();
}

}  // namespace tutti::backend::gloo
