#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "connection_watcher.hpp"
#include "group/agreement.hpp"
#include "rendezvous.hpp"

namespace gloo::transport {
class UnboundBuffer;
}  // namespace gloo::transport

namespace tutti::backend::gloo {

/// Why a message did not get through. The call then fails the mesh.
struct TransportError : std::exception {
  enum class Kind : std::uint8_t {
    late,     ///< The deadline passed while it waited for the peer.
    lost,     ///< The connection to the peer ended.
    failed,   ///< The mesh has failed, or is about to.
    refused,  ///< A rank refused the call; the mesh is up.
  };
  TransportError(Kind k, int p) : kind(k), peer(p) {}
  const char* what() const noexcept override { return "a message did not get through"; }
  Kind kind;
  int peer;  ///< Mesh rank.
};

/// The connections between all ranks of a group, shared by the groups that are split from it. It
/// is up, or it has failed for good. All functions from any thread.
class Mesh {
 public:
  /// One rank alone has no connections, and needs nothing but `size`.
  static std::shared_ptr<Mesh> make(const MeshInit& init);
  Mesh(const MeshInit& init, Connections made);  ///< For make().
  /// Leaves: what was sent arrives, then the connections end.
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  const Interface& interface() const noexcept { return interface_; }
  internal::Agreement& agreement() noexcept { return agreement_; }

  /// Fails the mesh, unless it has failed already; tells the peers; returns what counts on all
  /// ranks. Blocks a second at the most.
  Error fail(const internal::Failure& failure) noexcept;
  /// For a call that ended as `failed`: another thread fails the mesh now.
  Error await_failure(const internal::Failure& failure) noexcept;
  std::optional<Error> failure() const;
  /// The cause when the connection to `peer` ended, which the caller's group calls `rank`.
  Error lost(int peer, int rank) const;

  /// Called once, on any thread, with the cause of the failure. It may run while its owner lets go
  /// of it, also because of what it does itself, and so refers to nothing that ends with its owner.
  using Listener = std::function<void(const Error& cause)>;
  void listen(const std::shared_ptr<const Listener>& listener);

  /// A block of memory on its way to or from one peer. When it is destroyed, the transport does
  /// not touch the memory any more; if it was not waited for, the mesh has to fail.
  class Message {
   public:
    /// `call`: Group::call_id() or pair_id(), by which a peer may refuse it; 0: none can.
    /// @throws TransportError
    Message(Mesh& mesh, int peer, void* data, std::size_t bytes, std::uint64_t call);
    ~Message();
    Message(const Message&) = delete;
    Message& operator=(const Message&) = delete;

    void send(std::uint64_t slot);
    void recv(std::uint64_t slot);
    /// @throws TransportError
    void wait(Deadline limit);
    /// Ends a wait(), now or later, as `failed`. From any thread.
    void cancel() noexcept;

   private:
    friend class Mesh;
    void post(std::uint64_t slot);
    TransportError closed(const std::exception& why) const;

    Mesh& mesh_;
    int peer_;
    std::uint64_t call_;
    bool sends_ = false;
    bool looked_at_ = false;  // By Mesh::look().
    /// When the mesh began to doubt that it ends by itself.
    std::optional<std::chrono::steady_clock::time_point> doubted_;
    std::unique_ptr<::gloo::transport::UnboundBuffer> buffer_;
    Message* before_ = nullptr;  // In the mesh's list.
    Message* after_ = nullptr;
  };

 private:
  enum class State : std::uint8_t { up, failing, failed };

  void watch(std::weak_ptr<Mesh> self);
  /// A connection was ended by its peer. False: nobody has to know yet.
  bool ended(std::size_t connection) noexcept;
  /// True when a message (of this peer only, if given) has been doubted for as long as `patience`.
  bool waits_in_vain(std::optional<int> only, std::chrono::nanoseconds patience) noexcept;
  /// Cancels the messages of calls that a peer refused. Asks the store only while messages wait.
  void look() noexcept;

  int rank_;
  int size_;
  Interface interface_;
  internal::Agreement agreement_;
  std::shared_ptr<::gloo::transport::Device> device_;

  mutable std::mutex mutex_;
  std::condition_variable settled_;
  State state_ = State::up;
  std::shared_ptr<::gloo::transport::Context> context_;
  std::shared_ptr<const Sockets> sockets_;
  Message* messages_ = nullptr;
  std::optional<Error> cause_;
  std::vector<std::weak_ptr<const Listener>> listeners_;
  std::thread reaper_;
  // For connection_watcher_ alone.
  std::set<int> left_;  // Of the ranks whose connections ended, those that left on purpose.
  std::chrono::steady_clock::time_point next_look_{};
  std::chrono::nanoseconds look_pause_{};
  std::unique_ptr<ConnectionWatcher> connection_watcher_;
};

}  // namespace tutti::backend::gloo
