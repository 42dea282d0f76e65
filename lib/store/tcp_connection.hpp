#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include <tutti/deadline.hpp>

#include "store/protocol.hpp"
#include "store/tcp_socket.hpp"
#include "values/fork_guard.hpp"

namespace tutti::internal {

/// One connection to a store server, used by any number of threads at the same time: replies carry
/// the number of their request, so a get that waits delays nobody. There is no thread behind it.
/// Of those who wait for an answer one reads, for all; when it has its own, the next one does.
class TcpStoreConnection {
 public:
  struct Answer {
    Outcome outcome{};
    Errc code{};   ///< Of Outcome::error.
    Bytes body{};  ///< The value, or the text of the error.
  };

  TcpStoreConnection(Descriptor socket, std::string name);
  ~TcpStoreConnection();
  TcpStoreConnection(const TcpStoreConnection&) = delete;
  TcpStoreConnection& operator=(const TcpStoreConnection&) = delete;

  /// Empty when the limit passed without an answer: the connection stays in order, and an answer
  /// that comes later is dropped. @throws Error peer_lost when the server is gone, now and in every
  /// later call; backend when it sends what makes no sense; forked in a child.
  std::optional<Answer> call(Request request, Deadline::Clock::time_point limit);

  const std::string& name() const noexcept { return name_; }
  std::string local_address() const { return host_of(local_end(socket_)); }

 private:
  struct Outgoing {
    std::uint64_t id;
    Bytes frame;
  };
  void send_some();
  void receive_some();
  void deliver(const Frame& frame);
  void withdraw(std::uint64_t id);
  void end(Errc code, const std::string& why);

  Descriptor socket_;
  const std::string name_;
  ForkGuard fork_guard_;
  std::atomic<std::uint64_t> last_id_{0};

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Error> broken_;
  bool reading_ = false;  // Somebody waits for bytes from the server,
  bool writing_ = false;  // and for room to send.
  std::deque<Outgoing> out_;
  std::size_t sent_ = 0;  // Of the first of out_.
  FrameReader reader_{max_reply_bytes};
  std::map<std::uint64_t, std::optional<Answer>*> waiting_;
  Bytes scratch_;
};

}  // namespace tutti::internal
