#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <tutti/error.hpp>

#include "channel.hpp"
#include "mesh/links.hpp"

namespace tutti::backend::tcp {

/// The head of all that travels over a connection, in the byte order of the machine: ranks of
/// another order do not get as far (connect.cpp).
struct Frame {
  enum class Kind : std::uint32_t {
    data = 1,  ///< The bytes [begin, end) of a message follow.
    announce,  ///< A message is there; its data follow after `go`.
    go,        ///< A receive waits for the announced message.
    forget,    ///< The sender has given up a message: it matches no receive any more.
    revoke,    ///< The same for an announced one, whose data do not follow.
  };
  Kind kind = Kind::data;
  std::uint32_t number = 0;  ///< Of the sender's messages to this peer, over all connections.
  std::uint64_t slot = 0;    ///< Equal on both sides.
  std::uint64_t bytes = 0;   ///< Of the whole message.
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};
static_assert(sizeof(Frame) == 40, "has no padding");

/// The TCP connections of one rank to all others.
///
/// A message is sent at once, and a large one in one part per connection. Of a peer, messages are
/// matched in the order of their numbers. A connection is read only while something of its peer is
/// awaited, so the kernel's buffers hold what comes early, and TCP holds back the sender. What
/// arrives before its receive is kept in memory. Messages whose receive the peer may not have
/// posted for long are announced first if they are large: sends that are not of a collective.
class Links final : public mesh::Links {
 private:
  struct Incoming;

 public:
  struct Request;

  using Channels = std::vector<std::vector<Channel>>;
  /// `channels`: by rank, each ready to send. `announces`: every message is announced, so
  /// that a send ends only when its message has been matched. `dead_after`: a connection ends when
  /// data or a probe have waited so long for an answer of the peer's machine; 0: never.
  Links(Channels channels, bool announces, std::chrono::nanoseconds dead_after,
        std::function<void(int)> ended);
  ~Links() override;

  /// A frame of a request in the queue of a connection.
  struct Part {
    Frame frame{};
    std::size_t done = 0;  ///< Of the frame and its data.
    Request* request = nullptr;
    Part* next = nullptr;
  };
  struct Request : mesh::Links::Request {
    std::uint64_t slot = 0;
    std::byte* data = nullptr;
    std::size_t bytes = 0;
    Request* next = nullptr;  ///< In the list of posted receives, or of announced sends.
    Part part{};
    std::unique_ptr<Part[]> parts{};  ///< The other parts of a large message.
    int parts_left = 0;
  };

  /// `in_call`: of a collective. @throws std::bad_alloc; the message is then not sent.
  void send(Request& request, int peer, std::uint64_t slot, const void* data, std::size_t bytes,
            bool in_call);
  /// @throws std::bad_alloc; the request has then ended.
  void recv(Request& request, int peer, std::uint64_t slot, void* data, std::size_t bytes);
  /// Makes progress. True if a message with this slot has arrived that no receive has taken.
  bool has_arrived(int peer, std::uint64_t slot);
  /// Ends a request before its time: its message will not be matched, and is forgotten if it has
  /// been sent. Never waits; returns true.
  bool withdraw(Request& request) noexcept;
  /// Waits until posted messages have been sent and their arrival is acknowledged.
  void flush(Deadline limit);
  /// The sender of a message that this rank has not received; empty if there is none.
  std::optional<int> unreceived();
  /// The error of a peer that broke the protocol, or of a lack of memory.
  std::optional<Error> fault();
  /// Ends all connections and requests.
  void close() noexcept;

  /// Most connections to one peer.
  static constexpr int most_connections = 16;

 private:
  /// A message of the peer that has begun to arrive, or is announced.
  struct Incoming {
    std::uint32_t number = 0;
    std::uint64_t slot = 0;
    std::uint64_t bytes = 0;
    std::uint64_t promised = 0;  // Bytes of the frames that have begun.
    std::uint64_t got = 0;
    Request* request = nullptr;                    // The receive that has matched it.
    std::unique_ptr<std::byte[]> early = nullptr;  // Its data, while no receive has.
    bool announced = false;                        // Without data so far.
    bool forgotten = false;
  };
  /// A frame that the connection owns, with a copy of its data.
  struct OwnPart : Part {
    std::vector<std::byte> data{};
  };
  struct Connection {
    Channel channel{};
    Part* first = nullptr;  // To be sent.
    Part* last = nullptr;
    std::unique_ptr<std::byte[]> stage{};  // What has been read, and not yet handled.
    std::size_t begin = 0;
    std::size_t end = 0;
    bool has_frame = false;
    Frame frame{};
    std::uint64_t at = 0;      // The place of the next byte in the message.
    Incoming* into = nullptr;  // Of a data frame that is being received.
    Incoming whole{};          // A message of one frame whose receive was there.
    bool readable = true;      // Perhaps.
    bool closed = false;       // By the peer.
    Deadline::Clock::time_point unanswered_since{};  // As seen by serve(); 0: answered.
  };
  struct Peer {
    std::vector<Connection> connections{};
    Request* first = nullptr;  // Posted receives that have not been matched, oldest first.
    Request* last = nullptr;
    Request* announced = nullptr;  // Sends that wait for `go`.
    int awaited = 0;               // Receives that have not ended, and announced sends.
    std::uint32_t sent = 0;        // Messages.
    std::uint32_t begun = 0;       // Messages that have been matched or kept.
    std::list<Incoming> incoming{};
    bool ending = false;  // Its end has been reported.
    bool lost = false;    // Nothing more can be received.
    bool deaf = false;    // Nothing more can be sent.
  };

  bool progress() noexcept override;
  bool is_lost(int peer) const noexcept override {
    return peers_[static_cast<std::size_t>(peer)].lost;
  }
  bool has_more() const noexcept override { return queued_ > 0; }
  void serve() noexcept override;
  void sleep(Lock& lock, bool watches, bool moves, std::chrono::milliseconds time) override;

  /// The bytes that one connection moves before others have their turn.
  static constexpr std::size_t turn = std::size_t{1} << 20;
  static constexpr std::size_t stage_bytes = std::size_t{16} << 10;
  /// With more connections to read, the kernel says which of them have something.
  static constexpr std::size_t few_connections = 8;
  enum class Step : std::uint8_t { done, short_of_bytes, waits };

  Peer& peer_of(const Request& request) { return peers_[static_cast<std::size_t>(request.peer)]; }
  void await(Peer& peer, int more) noexcept;
  void end(Request& request, bool failed) noexcept;
  void queue(Peer& peer, Connection& connection, Part& part) noexcept;
  void queue_data(Peer& peer, Request& request) noexcept;
  void send_own(Peer& peer, const Frame& frame);
  void give_copies(Peer& peer, Request& request);
  bool write(Peer& peer, Connection& connection) noexcept;
  bool write_all() noexcept;
  void advance(Connection& connection, std::size_t bytes) noexcept;
  bool read(Peer& peer, Connection& connection);
  bool read_all(Peer& peer) noexcept;
  Step handle(Peer& peer, Connection& connection);
  Step open(Peer& peer, Connection& connection);
  Step begin_message(Peer& peer, Connection& connection);
  Request* take_posted(Peer& peer, std::uint64_t slot) noexcept;
  bool take_early(Peer& peer, Request& request);
  static std::span<std::byte> place(const Connection& connection) noexcept;
  void end_message(Peer& peer, Incoming& incoming) noexcept;
  void keep(Peer& peer, Incoming& incoming);
  void drop(Incoming& incoming) noexcept;
  void forget(Peer& peer, std::uint32_t number);
  void revoke(Peer& peer, std::uint32_t number);
  void go(Peer& peer, std::uint32_t number) noexcept;
  void unlink(Peer& peer, Request& request) noexcept;
  void stop_sending(Peer& peer) noexcept;
  void report(Peer& peer) noexcept;
  void accuse(Peer& peer, const char* why) noexcept;
  void fail(Peer& peer, Errc code, const char* why) noexcept;
  void collect(int epoll, std::chrono::milliseconds time, Lock* lock) noexcept;

  std::vector<Peer> peers_;
  bool announces_;
  std::chrono::nanoseconds dead_after_;
  Deadline::Clock::time_point next_look_{};
  std::size_t awaited_ = 0;  // Connections to peers that are read.
  int queued_ = 0;           // Connections with something to send.
  std::vector<int> open_{};  // Has room for all sockets; for flush().
  int epoll_ = -1;           // For a thread that waits.
  int watching_epoll_ = -1;  // For the thread in attend().
  std::uint64_t early_bytes_ = 0;
  std::optional<Error> fault_;
};

}  // namespace tutti::backend::tcp
