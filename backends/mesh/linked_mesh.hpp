#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "mesh/links.hpp"
#include "mesh/mesh.hpp"
#include "values/described.hpp"
#include "values/fail.hpp"

namespace tutti::backend::mesh {

/// The peers whose connections have ended; filled by any thread.
class EndedPeers {
 public:
  explicit EndedPeers(int size) : peers_(static_cast<std::size_t>(size)) {}
  /// Allocates nothing.
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

/// A mesh over a transport, with the thread that watches it. `Transport` is derived from Links or
/// has the same functions; it has a Request derived from Links::Request, and send(), recv(),
/// withdraw(), has_arrived(), flush(), unreceived(), fault(), close(). withdraw() returns false if
/// the peer has not given up the message in time.
template <typename Transport>
class LinkedMesh final : public Mesh {
 public:
  LinkedMesh(const BackendInit& init, int server, std::shared_ptr<Transport> links,
             std::shared_ptr<EndedPeers> ended, std::string transport)
      : Mesh(init, server),
        links_(std::move(links)),
        ended_(std::move(ended)),
        transport_(std::move(transport)) {}

  /// Leaves the group: sent messages arrive, then the connections end.
  ~LinkedMesh() override {
    stop_->requested = true;
    links_->interrupt();
    if (watcher_.get_id() == std::this_thread::get_id())
      watcher_.detach();  // ended() destroyed the last reference to the mesh.
    else if (watcher_.joinable())
      watcher_.join();
    if (is_up()) {
      links_->flush(Deadline::after(std::chrono::seconds(1)));
      try {
        if (const auto sender = links_->unreceived())
          log(LogLevel::error,
              fmt::format("group '{}' has ended, but rank {} has not received a message of rank "
                          "{}; every send needs a receive with the same tag",
                          names().group(), names()(rank()), names()(*sender)));
      } catch (const std::bad_alloc&) {  // There is no memory for the text.
      }
      agreement().leave(0);
    }
    links_->close();
  }

  /// Starts the watching thread. @throws Error resource_exhausted
  void watch(const std::weak_ptr<LinkedMesh>& self) {
    std::vector<int> room;
    room.reserve(static_cast<std::size_t>(size()));
    auto run = [this, self, links = links_, ended = ended_, stop = stop_, peers = std::move(room),
                pause = look_interval()]() mutable {
      constexpr std::chrono::milliseconds again{20};  // While a connection has ended.
      while (!stop->requested) {
        links->attend(peers.empty() ? pause : std::min(pause, again));
        ended->take(peers);
        // Keeps the mesh alive, here and below: a listener of its failure may destroy the group.
        std::erase_if(peers, [&](int peer) {
          const auto mesh = self.lock();
          return mesh == nullptr || mesh->ended(peer);
        });
        // Holds no reference, because the destructor waits for this thread. The weak pointer has
        // expired when the destructor runs on this thread.
        if (self.expired() || stop->requested) continue;
        auto cause = links->fault();
        if (!cause) cause = look();
        if (cause)
          if (const auto mesh = self.lock()) mesh->fail({.cause = *cause});
      }
    };
    try {
      watcher_ = std::thread(std::move(run));
    } catch (const std::system_error& error) {
      internal::failf(Errc::resource_exhausted, "cannot start the connection watcher: {}",
                      error.what());
    }
  }

  std::string transport() const override { return transport_; }
  bool wakes_a_thread() const noexcept override { return Transport::wakes_a_thread; }
  std::shared_ptr<mesh::Message> message(std::pmr::memory_resource& pool, int peer, void* data,
                                         std::size_t bytes, const MessageCall& call) override {
    return std::allocate_shared<Message>(std::pmr::polymorphic_allocator<Message>(&pool), *this,
                                         peer, data, bytes, call);
  }
  bool is_sent(int peer, std::uint64_t slot) override { return links_->has_arrived(peer, slot); }
  bool end_refused(std::uint64_t call, std::span<const int> peers, Deadline limit) override {
    return links_->end_refused(call, peers, limit);
  }
  void attend() noexcept override { links_->alert(); }

 private:
  class Message final : public mesh::Message {
   public:
    Message(LinkedMesh& mesh, int peer, void* data, std::size_t bytes, const MessageCall& call)
        : mesh::Message(mesh, peer, call),
          mesh_(mesh),
          links_(*mesh.links_),
          data_(data),
          bytes_(bytes),
          is_call_(call.call != nullptr) {
      enlist();
    }
    ~Message() override {
      leave();
      if (waited_ || !posted_ || links_.withdraw(request_)) return;
      // The transport may still access the memory; a failed mesh does not.
      mesh_.fail({.cause = internal::described(Errc::peer_lost, [&] {
                    const auto& names = mesh_.names();
                    return Error(
                        Errc::peer_lost,
                        fmt::format("rank {} does not discard a message that rank {} has withdrawn",
                                    names(peer()), names(mesh_.rank())),
                        {.rank = names(peer())});
                  })});
    }
    void send(std::uint64_t slot) override {
      links_.send(request_, peer(), slot, data_, bytes_, is_call_);
      posted_ = true;
    }
    void recv(std::uint64_t slot, bool exact) override {
      exact_ = exact;
      posted_ = true;
      links_.recv(request_, peer(), slot, data_, bytes_);
    }
    void wait(Deadline limit) override {
      using Outcome = Links::Outcome;
      using Kind = TransportError::Kind;
      switch (links_.wait(request_, limit, cancelled_)) {
        case Outcome::ended:
          waited_ = true;
          if (request_.failed) break;
          if (!request_.sends &&
              (request_.received > bytes_ || (exact_ && request_.received != bytes_)))
            throw wrong_length();
          return;
        case Outcome::lost:
          break;
        case Outcome::late:
          throw TransportError(Kind::late, peer());
        case Outcome::cancelled:
          throw cancelled();
        case Outcome::closed:
          throw TransportError(Kind::failed, peer());
      }
      throw TransportError(mesh_.is_up() ? Kind::lost : Kind::failed, peer());
    }
    void cancel() noexcept override {
      // Relaxed: no data depends on the flag, and the waiting thread looks at it again and again.
      cancelled_.store(true, std::memory_order_relaxed);
      links_.cancel(request_);
    }

   private:
    TransportError wrong_length() const {
      TransportError error(TransportError::Kind::length, peer());
      error.sent = request_.received;
      error.expected = bytes_;
      return error;
    }

    LinkedMesh& mesh_;
    Transport& links_;
    void* data_;
    std::size_t bytes_;
    bool is_call_;        // Of a collective, whose receive the peer posts too.
    bool exact_ = false;  // A receive whose length is known.
    bool posted_ = false;
    bool waited_ = false;
    std::atomic<bool> cancelled_{false};
    typename Transport::Request request_;
  };
  struct Stop {
    std::atomic<bool> requested{false};
  };

  void stop(const Error&) noexcept override {
    stop_->requested = true;
    links_->close();
    // Gloo does not report the end of a connection to a message of which a part has arrived.
    cancel_if([](const mesh::Message&) { return true; });
  }

  std::shared_ptr<Transport> links_;
  std::shared_ptr<EndedPeers> ended_;
  std::string transport_;
  std::shared_ptr<Stop> stop_ = std::make_shared<Stop>();  // Shared with the thread.
  std::thread watcher_;
};

/// A transport that has been connected.
template <typename Transport>
struct Connected {
  std::shared_ptr<Transport> links{};
  std::string transport{};  ///< Backend::transport().
  int server = -1;          ///< The rank that serves the store; -1: none, or unknown.
};

/// The mesh of a new group. `connect(init, ended)` returns a Connected; `ended(peer)` may be called
/// from any thread.
template <typename Connect>
std::shared_ptr<Mesh> make_linked_mesh(const BackendInit& init, const Connect& connect) {
  if (init.size == 1) return mesh_of_one();
  auto ended = std::make_shared<EndedPeers>(init.size);
  auto made = connect(init, [ended](int peer) { ended->add(peer); });
  using Transport = typename decltype(made.links)::element_type;
  auto mesh = std::make_shared<LinkedMesh<Transport>>(init, made.server, std::move(made.links),
                                                      std::move(ended), std::move(made.transport));
  mesh->watch(mesh);
  return mesh;
}

}  // namespace tutti::backend::mesh
