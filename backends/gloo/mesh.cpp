#include "gloo/mesh.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <string_view>
#include <utility>

#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/unbound_buffer.h>

#include "mesh/sockets.hpp"
#include "values/hash.hpp"

namespace tutti::backend::gloo {

using namespace std::chrono_literals;
using mesh::TransportError;

/// Gloo keeps a posted message: if a Message is destroyed without a successful wait(), and the peer
/// then posts its side, the connection stops. The owner therefore has to fail the mesh, unless a
/// peer refused the call.
class Mesh::Message final : public mesh::Message {
 public:
  Message(Mesh& mesh, int peer, void* data, std::size_t bytes, const mesh::MessageCall& call)
      : mesh::Message(mesh, peer, call) {
    {
      const std::lock_guard lock(mesh.connections_mutex_);
      if (mesh.context_ == nullptr) throw TransportError(TransportError::Kind::failed, peer);
      buffer_ = mesh.context_->createUnboundBuffer(data, bytes);
    }
    enlist();
  }
  ~Message() override { leave(); }  // Then waits until Gloo's I/O thread has released the buffer.

  void send(std::uint64_t slot) override {
    sends_ = true;
    post([&] { buffer_->send(peer(), slot); });
  }
  /// Gloo reports no length. A longer message ends the connection.
  void recv(std::uint64_t slot, bool) override {
    post([&] { buffer_->recv(peer(), slot); });
  }
  void wait(Deadline limit) override;
  void cancel() noexcept override {
    buffer_->abortWaitRecv();
    buffer_->abortWaitSend();
  }

 private:
  template <typename Post>
  void post(const Post& post) {
    try {
      post();
    } catch (const std::exception& error) {
      throw closed(error);
    }
  }
  TransportError closed(const std::exception& why) const;

  bool sends_ = false;
  std::unique_ptr<::gloo::transport::UnboundBuffer> buffer_;
};

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
    if (limit.expired()) throw TransportError(TransportError::Kind::late, peer());
    throw closed(error);
  }
  throw cancelled();
}

/// Returns the error of a message whose pair is closed. When one call times out, Gloo closes all
/// pairs of the context, and the other calls get this text (transport/tcp/context.cc).
TransportError Mesh::Message::closed(const std::exception& why) const {
  const bool another =
      std::string_view(why.what()).find("Application timeout") != std::string_view::npos;
  return {another ? TransportError::Kind::failed : TransportError::Kind::lost, peer()};
}

std::shared_ptr<mesh::Mesh> make_mesh(const MeshInit& init) {
  if (init.group.size == 1) return mesh::mesh_of_one();
  auto made = std::make_shared<Mesh>(init, rendezvous(init));
  made->watch(made);
  return made;
}

Mesh::Mesh(const MeshInit& init, Connections made)
    : mesh::Mesh(init.group, made.server),
      interface_(std::move(made.interface)),
      device_(std::move(made.device)),
      context_(std::move(made.context)),
      sockets_(std::make_shared<const Sockets>(std::move(made.sockets))) {}

void Mesh::watch(std::weak_ptr<Mesh> self) {
  // The watcher's thread may fail the mesh before this function has returned.
  const std::lock_guard lock(connections_mutex_);
  const auto ended = [self](std::size_t i) {
    // Keeps the mesh alive: a listener of its failure may destroy the group.
    const auto mesh = self.lock();
    return mesh == nullptr || mesh->ended(mesh->peer_of(i));
  };
  // Holds no reference between calls, because the destructor waits for this thread. The weak
  // pointer has expired when the destructor runs on this thread.
  const auto look = [this, self] {
    if (self.expired()) return;
    if (const auto cause = this->look())
      if (const auto mesh = self.lock()) mesh->fail({.cause = *cause});
  };
  connection_watcher_ = std::make_unique<ConnectionWatcher>(sockets_, ended, look, look_interval());
}

Mesh::~Mesh() {
  if (connection_watcher_ != nullptr) connection_watcher_->join();
  if (reaper_.joinable()) reaper_.join();
  if (context_ == nullptr) return;
  agreement().leave(0);
  mesh::drain(sockets_->descriptors());
  // Gloo's I/O thread closes the pairs of ended connections at once. Destroying a pair that is open
  // takes until the thread's next tick, up to 10 ms (transport/tcp/loop.cc).
  sockets_->shut_down();
}

std::shared_ptr<mesh::Message> Mesh::message(std::pmr::memory_resource& pool, int peer, void* data,
                                             std::size_t bytes, const mesh::MessageCall& call) {
  return std::allocate_shared<Message>(std::pmr::polymorphic_allocator<Message>(&pool), *this, peer,
                                       data, bytes, call);
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

bool Mesh::is_sent(int peer, std::uint64_t slot) {
  const std::lock_guard lock(connections_mutex_);
  return context_ != nullptr && AnnouncedSends::has(*context_, peer, slot);
}

bool Mesh::end_refused(std::uint64_t call, std::span<const int> peers, Deadline limit) {
  // All ranks have left the call, so no rank posts further messages of it. On each connection, the
  // peer's earlier messages arrive before its byte of round 1, and this rank's replies before its
  // byte of round 2.
  std::array<std::byte, 2> bytes{};
  for (const std::uint64_t round : {std::uint64_t{1}, std::uint64_t{2}}) {
    internal::Hash hash;
    hash.add(call);
    hash.add(~round);
    std::vector<std::shared_ptr<mesh::Message>> messages;
    auto& memory = *std::pmr::new_delete_resource();
    for (const int peer : peers) {
      if (peer == rank()) continue;
      messages.push_back(message(memory, peer, &bytes[0], 1, {}));
      messages.back()->recv(hash.value(), true);
      messages.push_back(message(memory, peer, &bytes[1], 1, {}));
      messages.back()->send(hash.value());
    }
    for (auto& message : messages) message->wait(limit);
  }
  return true;
}

void Mesh::stop(const Error&) noexcept {
  const std::lock_guard lock(connections_mutex_);
  sockets_->shut_down();
  cancel_if([](const mesh::Message&) { return true; });
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

}  // namespace tutti::backend::gloo
