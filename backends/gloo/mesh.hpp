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

/// The reason why a message was not delivered. The call then fails the mesh, unless a peer refused
/// it.
struct TransportError : std::exception {
  enum class Kind : std::uint8_t {
    late,     ///< The deadline passed while the message waited for the peer.
    lost,     ///< The connection to the peer ended.
    failed,   ///< The mesh has failed, or is about to.
    refused,  ///< A rank refused the call; the mesh is up.
  };
  TransportError(Kind k, int p) : kind(k), peer(p) {}
  const char* what() const noexcept override { return "a message was not delivered"; }
  Kind kind;
  int peer;  ///< Mesh rank.
};

/// The connections between all ranks of a group, shared with the groups that are split from it. A
/// failed mesh does not recover. Called from any thread.
class Mesh {
 public:
  /// A mesh of one rank has no connections and needs only `size`.
  static std::shared_ptr<Mesh> make(const MeshInit& init);
  Mesh(const MeshInit& init, Connections made);  ///< For make().
  /// Leaves the group: sent messages arrive, then the connections end.
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  const Interface& interface() const noexcept { return interface_; }
  internal::Agreement& agreement() noexcept { return agreement_; }

  /// Fails the mesh, unless it has failed already, and publishes the failure. Returns the first
  /// cause, which is the same on all ranks. Blocks for at most about 1 s longer than
  /// Failure::patience.
  Error fail(const internal::Failure& failure) noexcept;
  /// The same for a call that ended with Kind::failed: waits up to 2 s for the thread that fails
  /// the mesh, and fails it only after that.
  Error await_failure(const internal::Failure& failure) noexcept;
  std::optional<Error> failure() const;
  /// The error for an ended connection to `peer`. `rank`: the peer's rank in the caller's group.
  Error lost(int peer, int rank) const;

  /// Called once, on any thread, with the cause of the failure; at once if the mesh has failed.
  /// Must not refer to its owner, which may be destroyed meanwhile, even by the listener itself.
  using Listener = std::function<void(const Error& cause)>;
  void listen(const std::shared_ptr<const Listener>& listener);

  /// A block of memory that is sent to or received from one peer. The transport does not touch the
  /// memory after the destructor. Gloo nevertheless keeps a posted message: if a Message is
  /// destroyed without a successful wait(), and the peer then posts its side, the connection stops.
  /// The owner therefore has to fail the mesh, unless a peer refused the call.
  class Message {
   public:
    /// `call`: the id by which a peer may refuse it (Group::call_id() or pair_id()); 0: no refusal.
    /// @throws TransportError
    Message(Mesh& mesh, int peer, void* data, std::size_t bytes, std::uint64_t call);
    ~Message();
    Message(const Message&) = delete;
    Message& operator=(const Message&) = delete;

    void send(std::uint64_t slot);
    void recv(std::uint64_t slot);
    /// @throws TransportError
    void wait(Deadline limit);
    /// Ends the present or the next wait() with a TransportError. Called from any thread.
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
    /// The time since which the mesh doubts that the message will still arrive.
    std::optional<std::chrono::steady_clock::time_point> doubted_;
    std::unique_ptr<::gloo::transport::UnboundBuffer> buffer_;
    Message* before_ = nullptr;  // In the mesh's list.
    Message* after_ = nullptr;
  };

 private:
  enum class State : std::uint8_t { up, failing, failed };

  void watch(std::weak_ptr<Mesh> self);
  /// Handles a connection that the peer closed. Returns false if it has to be called again.
  bool ended(std::size_t connection) noexcept;
  /// Called while a connection has ended. From the first call on, pending messages (only those of
  /// peer `only`, if given) may no longer arrive; true when this has lasted for `patience`.
  bool waits_in_vain(std::optional<int> only, std::chrono::nanoseconds patience) noexcept;
  /// Cancels the messages of calls that a peer refused. Polls the store only while messages wait.
  void look() noexcept;

  int rank_;
  int size_;
  bool checked_;
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
  std::optional<std::chrono::steady_clock::time_point> died_;  // A rank, without leaving.
  std::set<int> left_;  // Ranks that left on purpose and whose connections ended.
  std::chrono::steady_clock::time_point next_look_{};
  std::chrono::nanoseconds look_pause_{};
  std::unique_ptr<ConnectionWatcher> connection_watcher_;
};

}  // namespace tutti::backend::gloo
