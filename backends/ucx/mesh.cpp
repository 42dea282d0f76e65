#include "ucx/mesh.hpp"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "values/described.hpp"
#include "values/fail.hpp"

namespace tutti::backend::ucx {

using namespace std::chrono_literals;
using mesh::TransportError;

namespace {

/// The interval of the watching thread while a connection has ended.
constexpr std::chrono::milliseconds again_interval = 20ms;
/// The time in which a peer discards a withdrawn message.
constexpr auto withdrawal_time = 2s;
constexpr auto leaving_time = 1s;

}  // namespace

class Mesh::Ended {
 public:
  explicit Ended(int size) : peers_(static_cast<std::size_t>(size)) {}
  /// Allocates nothing, because UCX calls it.
  void add(int peer) noexcept {
    const std::lock_guard lock(mutex_);
    peers_[static_cast<std::size_t>(peer)] = true;
  }
  /// Appends the peers that were added since the last call to `peers`, which has room for all.
  void take(std::vector<int>& peers) noexcept {
    const std::lock_guard lock(mutex_);
    for (std::size_t r = 0; r < peers_.size(); ++r) {
      const bool added = std::exchange(peers_[r], false);
      const int peer = static_cast<int>(r);
      if (added && std::ranges::find(peers, peer) == peers.end()) peers.push_back(peer);
    }
  }

 private:
  std::mutex mutex_;
  std::vector<char> peers_;
};

class Mesh::Message final : public mesh::Message {
 public:
  Message(Mesh& mesh, int peer, void* data, std::size_t bytes, const mesh::MessageCall& call)
      : mesh::Message(mesh, peer, call),
        mesh_(mesh),
        worker_(*mesh.worker_),
        data_(data),
        bytes_(bytes) {
    enlist();
  }
  ~Message() override {
    leave();
    if (waited_ || !posted_) return;
    // UCX may still access the memory.
    if (!worker_.withdraw(request_, Deadline::after(withdrawal_time)))
      mesh_.fail({.cause = internal::described(Errc::peer_lost, [&] {
                    return Error(
                        Errc::peer_lost,
                        fmt::format("rank {} does not discard a message that rank {} has withdrawn",
                                    mesh_.names()(peer()), mesh_.names()(mesh_.rank())),
                        {.rank = mesh_.names()(peer())});
                  })});
  }

  void send(std::uint64_t slot) override {
    posted_ = true;
    worker_.send(request_, peer(), Worker::tag_of(worker_.rank(), slot), data_, bytes_);
  }
  void recv(std::uint64_t slot, bool exact) override {
    posted_ = true;
    exact_ = exact;
    worker_.recv(request_, peer(), Worker::tag_of(peer(), slot), data_, bytes_);
  }
  void wait(Deadline limit) override {
    using Outcome = Worker::Outcome;
    switch (worker_.wait(request_, limit, cancelled_)) {
      case Outcome::ended:
        waited_ = true;
        if (request_.status == UCS_ERR_MESSAGE_TRUNCATED ||
            (request_.status == UCS_OK && exact_ && request_.received != bytes_))
          throw wrong_length();
        if (request_.status == UCS_OK) return;
        break;
      case Outcome::lost:
        break;
      case Outcome::late:
        throw TransportError(TransportError::Kind::late, peer());
      case Outcome::cancelled:
        throw cancelled();
      case Outcome::closed:
        throw TransportError(TransportError::Kind::failed, peer());
    }
    throw TransportError(mesh_.is_up() ? TransportError::Kind::lost : TransportError::Kind::failed,
                         peer());
  }
  void cancel() noexcept override {
    // Relaxed: no data depends on the flag, and the waiting thread looks at it again and again.
    cancelled_.store(true, std::memory_order_relaxed);
  }

 private:
  TransportError wrong_length() const {
    TransportError error(TransportError::Kind::length, peer());
    error.sent = request_.received;
    error.expected = bytes_;
    return error;
  }

  Mesh& mesh_;
  Worker& worker_;
  void* data_;
  std::size_t bytes_;
  bool posted_ = false;
  bool exact_ = false;  // A receive whose length is known.
  bool waited_ = false;
  std::atomic<bool> cancelled_{false};
  Worker::Request request_;
};

std::shared_ptr<mesh::Mesh> make_mesh(const MeshInit& init) {
  if (init.group.size == 1) return mesh::mesh_of_one();
  auto ended = std::make_shared<Mesh::Ended>(init.group.size);
  auto made = rendezvous(init, [ended](int peer) { ended->add(peer); });
  // Checked mode compares the records of a message while its two sides wait for each other.
  if (init.group.checked) made.worker->set_synchronous();
  auto mesh = std::make_shared<Mesh>(init, std::move(made), std::move(ended));
  mesh->watch(mesh);
  return mesh;
}

Mesh::Mesh(const MeshInit& init, Connections made, std::shared_ptr<Ended> ended)
    : mesh::Mesh(init.group, made.server),
      processes_(init.transports.report_ends ? std::vector<Process>{} : std::move(made.processes)),
      worker_(std::move(made.worker)),
      transport_(worker_->transports()),
      ended_(std::move(ended)) {}

void Mesh::watch(const std::weak_ptr<Mesh>& self) {
  std::vector<int> room;
  room.reserve(static_cast<std::size_t>(size()));
  auto run = [this, self, worker = worker_, ended = ended_, stop = stop_, processes = processes_,
              peers = std::move(room), pause = look_interval()]() mutable {
    while (!stop->requested) {
      worker->attend(peers.empty() ? pause : std::min(pause, again_interval));
      for (std::size_t r = 0; r < processes.size(); ++r)
        if (!processes[r].is_alive()) worker->set_lost(static_cast<int>(r));
      // Keeps the mesh alive, here and below: a listener of its failure may destroy the group.
      if (!processes.empty())
        if (const auto mesh = self.lock(); mesh != nullptr && waits()) look_for_ends();
      ended->take(peers);
      std::erase_if(peers, [&](int peer) {
        const auto mesh = self.lock();
        return mesh == nullptr || mesh->ended(peer);
      });
      // Holds no reference, because the destructor waits for this thread. The weak pointer has
      // expired when the destructor runs on this thread.
      if (self.expired() || stop->requested) continue;
      if (const auto cause = look())
        if (const auto mesh = self.lock()) mesh->fail({.cause = *cause});
    }
  };
  try {
    watcher_ = std::thread(std::move(run));
  } catch (const std::system_error& error) {
    internal::failf(Errc::resource_exhausted, "ucx: cannot start the connection watcher: {}",
                    error.what());
  }
}

/// For transports that do not report that a peer has closed its connections.
void Mesh::look_for_ends() noexcept {
  for (const auto& [peer, calls] : agreement().departed()) worker_->set_lost(peer);
  try {
    if (agreement().collecting() || agreement().cause({}))
      fail({.cause = internal::described(Errc::peer_lost, [] {
              return Error(Errc::peer_lost, "a peer has reported a failure");
            })});
  } catch (...) {  // Without the store no further ends are found.
  }
}

Mesh::~Mesh() {
  stop_->requested = true;
  worker_->interrupt();
  if (watcher_.get_id() == std::this_thread::get_id())
    watcher_.detach();  // ended() destroyed the last reference to the mesh.
  else if (watcher_.joinable())
    watcher_.join();
  if (is_up()) {
    worker_->flush(Deadline::after(leaving_time));
    try {
      if (const auto sender = worker_->unreceived())
        log(LogLevel::error,
            fmt::format("group '{}' has ended, but rank {} has not received a message of rank {}; "
                        "every send needs a receive with the same tag",
                        names().group(), names()(rank()), names()(*sender)));
    } catch (const std::bad_alloc&) {  // There is no memory for the text.
    }
    agreement().leave(0);
  }
  worker_->close();
}

std::shared_ptr<mesh::Message> Mesh::message(std::pmr::memory_resource& pool, int peer, void* data,
                                             std::size_t bytes, const mesh::MessageCall& call) {
  return std::allocate_shared<Message>(std::pmr::polymorphic_allocator<Message>(&pool), *this, peer,
                                       data, bytes, call);
}

bool Mesh::is_sent(int peer, std::uint64_t slot) {
  return worker_->has_arrived(Worker::tag_of(peer, slot));
}

/// Tags are of one call, and messages of the call are withdrawn one by one when they are destroyed.
bool Mesh::end_refused(std::uint64_t, std::span<const int>, Deadline) {
  return true;
}

void Mesh::stop(const Error&) noexcept {
  stop_->requested = true;
  worker_->close();
}

}  // namespace tutti::backend::ucx
