#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backend/host_state.hpp"
#include "memory/member.hpp"
#include "ring.hpp"

namespace tutti::backend::shm {

using namespace memory;

/// The sends and receives of one rank. The receiver matches them in the order of arrival and
/// compares their fingerprints. Frames are moved by the callers that wait, and otherwise by a
/// thread that starts with the first message. All functions from any thread.
class Messages : public std::enable_shared_from_this<Messages> {
 public:
  class Message;

  explicit Messages(std::shared_ptr<Member> member);
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  /// @throws Error resource_exhausted; the message is then not under way.
  void post(const std::shared_ptr<Message>& message, const Call& call);
  /// Tells the peer that this rank refused a message.
  void refuse(const Op& op, const Error& why) noexcept;
  /// Ends every message, including later ones. The first cause applies.
  void fail(const Error& cause) noexcept;
  /// Ends the thread. Frames that are complete still reach the peers.
  void stop() noexcept;

 private:
  /// A send that has no receive yet.
  struct Request {
    int from;
    Frame frame;
    std::vector<std::byte> payload;
    std::shared_ptr<Message> local;  // Of a rank to itself.
  };
  struct Receive {
    int peer;
    int tag;
    std::shared_ptr<Message> message;  // Null if the rank refused the receive,
    std::string text;                  // for this reason.
  };
  struct Transfer {
    std::shared_ptr<Message> message;
    std::uint64_t moved = 0;
  };
  struct Packet {
    Frame frame;
    std::vector<std::byte> payload;
  };
  /// The connection with one peer.
  struct Peer {
    RingSender out;
    RingReceiver in;
    internal::StoppedProcess stopped;              // While this rank needs the peer.
    std::deque<Packet> packets{};                  // Waiting for room in the ring.
    std::deque<std::uint64_t> accepted{};          // Sends whose data is to be sent.
    std::map<std::uint64_t, Transfer> sends{};     // By id; not complete.
    std::map<std::uint64_t, Transfer> receives{};  // Accepted, and not complete.
    std::map<std::uint64_t, std::shared_ptr<Message>> differing{};  // Waiting for an explanation.
  };
  struct End {
    std::shared_ptr<Message> message;
    std::exception_ptr error;
  };

  void work() noexcept;
  void start_thread();  // Under the lock, like the next ones.
  void add(const std::shared_ptr<Message>& message);
  void put(int to, Frame frame, const void* payload);
  void put_text(int to, Frame::Kind kind, std::uint64_t id, std::int32_t tag,
                std::string_view text);
  bool move();
  bool receive_from(int from);
  bool send_to(int to);
  void wake(int rank) noexcept;
  std::size_t room_to(int to);
  bool send_data(int to);
  void handle(int from, const Frame& frame);
  void handle_request(int from, const Frame& frame);
  void handle_data(int from, const Frame& frame);
  void match_request(Request request);
  void match_receive(Receive receive);
  void complete(Request& request, Receive& receive);
  void accept(Request& request, const std::shared_ptr<Message>& message);
  std::shared_ptr<Message> take_send(int from, std::uint64_t id);
  std::string read_text(int from, const Frame& frame);
  /// Allocates nothing.
  void end(const std::shared_ptr<Message>& message, const Error* error) noexcept;
  std::exception_ptr ended_by_cause(const Message& message) const noexcept;
  bool needs(int rank) const;
  bool is_alone(const std::vector<bool>& left) const;

  /// Moves frames, and ends messages that are complete. True if frames moved.
  bool drive() noexcept;
  void finish_ended() noexcept;
  void poll_for(const Message& message) noexcept;
  void look() noexcept;
  std::optional<Error> find_lost();
  void expire(Message& message) noexcept;
  std::size_t short_bytes() const noexcept;

  std::shared_ptr<Member> member_;
  Bell& bell_;
  std::mutex mutex_;
  std::vector<Peer> peers_;
  std::deque<Request> requests_;  // Oldest first.
  std::deque<Receive> receives_;
  std::vector<std::shared_ptr<Message>> pending_;
  std::vector<End> ended_;  // Has room for all of pending_.
  std::uint64_t last_id_ = 0;
  std::optional<Error> cause_;
  std::optional<Error> corrupt_;
  int polling_ = 0;      // Callers that move frames.
  bool asleep_ = false;  // The thread sleeps, or is about to,
  bool idle_ = false;    // for as long as there is no message.
  bool stop_ = false;
  std::thread thread_;
};

class Messages::Message final : public internal::HostState {
 public:
  Message(std::shared_ptr<internal::CallQueue> queue, std::shared_ptr<Messages> messages,
          const Op& op, Deadline limit)
      : HostState(std::move(queue)), messages_(std::move(messages)), op_(op), limit_(limit) {}

  bool done() const noexcept override;
  bool wait_until(Deadline deadline) override;
  const Op& op() const noexcept { return op_; }
  Deadline limit() const noexcept { return limit_; }
  bool ended() const noexcept { return HostState::done(); }

 private:
  friend class Messages;
  std::string description() const;

  std::shared_ptr<Messages> messages_;
  Op op_;
  Deadline limit_;
  std::string text_{};  // Description of a message with a name.
};

}  // namespace tutti::backend::shm
