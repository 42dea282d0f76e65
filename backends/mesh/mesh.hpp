#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tutti/backend/backend_table.hpp>

#include "backend/failing_group.hpp"
#include "backend/group_names.hpp"
#include "backend/heartbeats.hpp"
#include "collectives/wire.hpp"

namespace tutti::backend::mesh {

/// The reason why a message was not delivered. The call then fails the mesh, unless a peer refused
/// it.
struct TransportError : std::exception {
  enum class Kind : std::uint8_t {
    late,     ///< The deadline passed while the message waited for the peer.
    lost,     ///< The connection to the peer ended.
    failed,   ///< The mesh has failed, or is about to.
    refused,  ///< A rank refused the call; the mesh is up.
    length,   ///< The peer's message has another length.
  };
  TransportError(Kind k, int p) : kind(k), peer(p) {}
  const char* what() const noexcept override { return "a message was not delivered"; }
  Kind kind;
  int peer;  ///< Mesh rank.
  // Of Kind::length, in bytes.
  std::size_t sent = 0;
  std::size_t expected = 0;
};

class Message;
struct GroupCalls;

/// The call that a message belongs to. Borrows all of it while the message is in the mesh's list.
struct MessageCall {
  std::uint64_t id = 0;  ///< By which a peer may refuse it; 0: no refusal.
  const GroupCalls* group = nullptr;
  std::span<const Op> ops{};
  const Call* call = nullptr;  ///< Of a collective; null for a send or receive.
  std::string_view text{};     ///< The description of a named send or receive; empty: of its Op.
};

/// The connections between all ranks of a group, shared with the groups that are split from it. A
/// failed mesh does not recover. Called from any thread. A derived class moves the messages.
class Mesh : public internal::FailingGroup {
 public:
  /// `server`: the rank that serves the store, which ends with it; -1: none, or unknown.
  explicit Mesh(const BackendInit& init, int server = -1)
      : FailingGroup(init.store, init.rank, init.size),
        names_(init.name, init.whole),
        rank_(init.rank),
        size_(init.size),
        checked_(init.checked),
        logger_(init.logger),
        server_(server),
        heartbeats_(init) {}

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  /// Backend::transport().
  virtual std::string transport() const = 0;
  virtual bool wakes_a_thread() const noexcept = 0;  ///< collectives::Wire::wakes_a_thread().

  /// A message to or from a peer, in memory of `pool`. @throws TransportError
  virtual std::shared_ptr<Message> message(std::pmr::memory_resource& pool, int peer, void* data,
                                           std::size_t bytes, const MessageCall& call) = 0;
  /// True if `peer` has sent a message with this slot that this rank has not received. Not for a
  /// slot for which a message has been posted here.
  virtual bool is_sent(int peer, std::uint64_t slot) = 0;
  /// Ends this rank's messages of a call that a rank refused: none of them matches a message of a
  /// later call. `peers`: the ranks that entered the call; all of them have left it. Returns false
  /// if that fails by `limit`.
  virtual bool end_refused(std::uint64_t call, std::span<const int> peers, Deadline limit) = 0;

  /// Adds the calls of a group, which are compared while a rank waits, until they are destroyed.
  void add_calls(const std::shared_ptr<const GroupCalls>& calls);
  /// Compares the calls of a group that ends with those of the ranks that have ended it before, and
  /// logs a difference.
  void end_calls(const GroupCalls& calls) noexcept;

  /// Called after a message has been posted for which no thread waits yet.
  virtual void attend() noexcept {}

  /// The names that errors give the group with which the mesh was made, and its ranks.
  const internal::GroupNames& names() const noexcept { return names_; }

  /// The cause of the failure when the connection to `peer` has ended: in the ranks of names(). If
  /// the store has ended too, because the rank that serves it has died, names that rank.
  Error lost(int peer) const noexcept;

  /// Called once, on any thread, with the cause of the failure; at once if the mesh has failed.
  /// Must not refer to its owner, which may be destroyed meanwhile, even by the listener itself.
  using Listener = std::function<void(const Error& cause)>;
  void listen(const std::shared_ptr<const Listener>& listener);

 protected:
  /// Cancels all messages that match.
  template <typename Match>
  void cancel_if(const Match& match) noexcept;

  void log(LogLevel level, std::string_view text) const noexcept;
  // For the thread of the derived class that watches the connections.

  /// Handles a connection that the peer closed. Returns false if it has to be called again.
  bool ended(int peer) noexcept;
  /// Cancels the messages of calls that a peer refused, compares the calls of ranks that wait, and
  /// looks for ranks that do not respond (Heartbeats). Polls the store for refusals and for the
  /// beats of peers only while messages wait, for questions twice a second. Returns the cause with
  /// which the caller then fails the mesh, which that may destroy.
  std::optional<Error> look() noexcept;
  /// The longest time between two calls of look().
  std::chrono::milliseconds look_interval() const noexcept;

 private:
  friend class Message;
  void on_broken(const Error& cause) noexcept override;
  Error describe_lost(int peer) const;
  /// Called while a connection has ended. From the first call on, pending messages (only those of
  /// peer `only`, if given) may no longer arrive; true when this has lasted for `patience`.
  bool waits_in_vain(std::optional<int> only, std::chrono::nanoseconds patience) noexcept;
  bool may_come_from_others(const Message& candidate) const noexcept;

  /// The calls that have waited for long.
  struct Waiting {
    struct Collective {
      std::shared_ptr<const GroupCalls> group;
      std::uint64_t seq;  // GroupNames::shown().
      std::string text;   // "all_reduce sum f32 [4]"; of a part: empty.
    };
    bool any = false;        // Some call waits, maybe not for long.
    bool is_recent = false;  // Some call is compared, and has not been for long.
    std::vector<Collective> collectives{};
    std::vector<std::pair<int, internal::MessageSide>> messages{};  // With their peers.
  };
  Waiting waiting_calls(std::chrono::steady_clock::time_point now);
  /// The error of a rank that does not respond.
  std::optional<Error> look_at_beats(std::chrono::steady_clock::time_point now);
  std::vector<int> awaited_peers() const;
  bool store_answers() noexcept;
  void cancel_refused() noexcept;
  /// The description of a send or receive that has not ended.
  std::optional<std::string> find_listed(std::uint64_t pair) const;
  std::vector<std::shared_ptr<const GroupCalls>> all_calls();
  // These return the cause with which the mesh fails.
  std::optional<Error> ask(const Waiting& waiting);
  std::optional<Error> answer(const Waiting& waiting);
  /// Compares one group's calls, or of a part those of the whole group. `waits`: this rank waits in
  /// the last one.
  std::optional<Error> compare(const GroupCalls& calls, const Waiting::Collective* waits);
  std::optional<Error> compare_message(const internal::MessageSide& theirs);

  internal::GroupNames names_;
  int rank_;
  int size_;
  bool checked_;
  Logger logger_;
  std::atomic<int> server_;  // -1 once that rank has left on purpose.

  mutable std::mutex mutex_;
  Message* messages_ = nullptr;
  std::vector<std::weak_ptr<const Listener>> listeners_;
  std::vector<std::weak_ptr<const GroupCalls>> calls_;
  // For the watching thread alone.
  internal::Heartbeats heartbeats_;
  std::optional<std::chrono::steady_clock::time_point> died_;  // A rank, without leaving.
  std::set<int> left_;  // Ranks that left on purpose and whose connections ended.
  bool alone_ = false;  // A receive from any rank waits, and no other rank is left.
  std::chrono::steady_clock::time_point next_look_{};
  std::chrono::nanoseconds look_pause_{};
  std::chrono::steady_clock::time_point next_question_time_{};
  std::size_t next_question_ = 0;
};

/// A mesh of one rank, which has no connections.
std::shared_ptr<Mesh> mesh_of_one();

/// A block of memory that is sent to or received from one peer. The transport does not touch the
/// memory after the destructor.
class Message {
 public:
  Message(Mesh& mesh, int peer, const MessageCall& call) : mesh_(mesh), peer_(peer), call_(call) {}
  virtual ~Message() = default;
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;

  /// Posts the message. It matches the peer's message with the same slot. @throws TransportError
  virtual void send(std::uint64_t slot) = 0;
  /// `exact`: a shorter message than the array is an error, if the transport reports lengths.
  virtual void recv(std::uint64_t slot, bool exact) = 0;
  /// @throws TransportError
  virtual void wait(Deadline limit) = 0;
  /// Ends the present or the next wait() with a TransportError. Called from any thread, also with
  /// the lock of the list.
  virtual void cancel() noexcept = 0;

 protected:
  int peer() const noexcept { return peer_; }
  /// The error of a cancelled message.
  TransportError cancelled() const;
  /// Adds the message to the list of the mesh, last in the constructor of a derived class. @throws
  /// TransportError if the mesh has failed or a peer has refused the call.
  void enlist();
  /// Removes the message from the list, first in the destructor of a derived class: cancel() is
  /// then called no more.
  void leave() noexcept;

 private:
  friend class Mesh;
  std::string message_text() const;
  /// Stands for one of the sends that a receive from any rank may take (receives.cpp).
  bool is_candidate() const noexcept {
    return call_.call == nullptr && !call_.ops.empty() && call_.ops[0].peer == any_peer;
  }

  Mesh& mesh_;
  int peer_;
  MessageCall call_;
  bool listed_ = false;
  std::optional<std::chrono::steady_clock::time_point> since_;  // The first Mesh::look() at it.
  /// The time since which the mesh doubts that the message will still arrive.
  std::optional<std::chrono::steady_clock::time_point> doubted_;
  Message* before_ = nullptr;  // In the mesh's list.
  Message* after_ = nullptr;
};

template <typename Match>
void Mesh::cancel_if(const Match& match) noexcept {
  const std::lock_guard lock(mutex_);
  for (auto* m = messages_; m != nullptr; m = m->after_)
    if (match(*m)) m->cancel();
}

}  // namespace tutti::backend::mesh
