#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <tutti/store/store_server.hpp>

#include "store/listener.hpp"
#include "store/protocol.hpp"
#include "store/requests.hpp"
#include "store/tcp_socket.hpp"

namespace tutti::internal {

/// The thread of a StoreServer: sockets on one side, StoreRequests on the other. Nothing in it
/// blocks but waiting for all of them at once.
class StoreServerLoop {
 public:
  /// Listens when it returns; throws as StoreServer does.
  explicit StoreServerLoop(const StoreServerOptions& options);
  ~StoreServerLoop();
  StoreServerLoop(const StoreServerLoop&) = delete;
  StoreServerLoop& operator=(const StoreServerLoop&) = delete;

  /// Until stop().
  void run() noexcept;
  // From any thread.
  void stop() noexcept;
  int port() const noexcept { return listener_.port(); }
  int clients() const;
  bool wait_until_left(Deadline deadline);

 private:
  using Clock = Deadline::Clock;
  using Id = StoreRequests::Client;
  /// A reply on its way. The value is the table's own.
  struct Piece {
    Bytes head;
    StoreTable::Value value;
    std::size_t size() const { return head.size() + (value == nullptr ? 0 : value->size()); }
  };
  struct Connection {
    Connection(Id number, Descriptor accepted)
        : id(number), socket(std::move(accepted)), reader(max_request_bytes) {}
    Id id;
    Descriptor socket;
    bool joined = false;
    bool leaving = false;  ///< Nothing is read any more; closed when everything is sent.
    bool dead = false;     ///< Closed at the end of this turn.
    bool touched = false;  ///< In touched_.
    Bytes greeting{};
    FrameReader reader;
    std::deque<Piece> out{};
    std::size_t sent = 0;     ///< Of the first piece.
    std::size_t unsent = 0;   ///< Of all, with what they cost beside their bytes.
    std::size_t counted = 0;  ///< Its part of input_bytes_.
    std::uint32_t events = 0;
  };

  void turn();
  int timeout(Clock::time_point now) const;

  void accept_all(std::size_t socket, Clock::time_point now);
  void take_in(Descriptor socket, Clock::time_point now);
  bool drop_oldest_stranger();
  void warn(Clock::time_point now, const std::string& text);

  void receive(Connection& connection);
  void greet(Connection& connection, std::span<const std::byte>& bytes);
  void say_no(Connection& connection, Errc code, std::string_view text);
  bool work(Connection& connection);
  void leave(Connection& connection);
  void count_input(Connection& connection);
  void queue(Id id, const Reply& reply);
  void queue_error(Connection& connection, std::uint64_t id, const Error& error);
  void push(Connection& connection, Piece piece);
  void send_out(Connection& connection);
  void watch(Connection& connection);
  void touch(Connection& connection);
  void settle_touched();
  void close(Id id);
  void count_clients(int change);
  void close_late(Clock::time_point now);
  void log(LogLevel level, const std::string& text) const noexcept;

  StoreServerOptions options_;
  Descriptor epoll_;
  Descriptor wake_;
  StoreListener listener_;
  std::atomic<bool> stop_{false};

  Id last_id_ = 0;
  std::unordered_map<Id, std::unique_ptr<Connection>> connections_;
  // When who has not introduced himself, or does not take his last reply, is closed. An entry may
  // be stale.
  std::multimap<Clock::time_point, Id> limits_;
  std::vector<Id> touched_;  // To send to, to read on, or to close.
  StoreRequests requests_;
  std::size_t input_bytes_ = 0;  // Of unfinished frames, all clients together.
  Bytes scratch_;
  Clock::time_point last_warning_{};

  mutable std::mutex mutex_;
  std::condition_variable left_;
  int clients_ = 0;  // Under mutex_.
};

}  // namespace tutti::internal
