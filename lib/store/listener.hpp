#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <tutti/deadline.hpp>

#include "store/tcp_socket.hpp"

namespace tutti::internal {

/// Accepts the clients of a store server. When the process has no descriptor left, a client gets an
/// error through a descriptor kept for this, or waits a moment; without that the listening socket
/// would stay readable and spin.
class StoreListener {
 public:
  using Clock = Deadline::Clock;
  static constexpr std::size_t most = 16;  ///< Addresses of one host.
  enum class Knock : std::uint8_t {
    nobody,  ///< No more at present.
    came,    ///< Here it is.
    gone,    ///< It has left already.
    full,    ///< Somebody waits, but there is no descriptor for him.
  };

  /// Listens; throws as StoreServer does. Empty host: every interface.
  StoreListener(const std::string& host, int port);
  ~StoreListener();
  StoreListener(const StoreListener&) = delete;
  StoreListener& operator=(const StoreListener&) = delete;

  int port() const noexcept { return port_; }
  const std::string& name() const noexcept { return name_; }

  /// Tells `epoll`, which has to live longer, under the tokens from `first` on.
  void watch(const Descriptor& epoll, std::uint64_t first);
  Knock accept(std::size_t socket, Descriptor& client);
  /// Says these words to the next one and closes.
  void refuse(std::size_t socket, std::span<const std::byte> words);
  /// time_point::max() when it does not pause.
  Clock::time_point resumes_at() const noexcept { return resumes_at_; }
  void resume(Clock::time_point now);

 private:
  bool listen_at(SocketAddress address, bool both_families, int& error);
  void pause();
  void set_events(std::uint32_t events);

  int port_;
  std::string name_;
  std::vector<Descriptor> sockets_;
  Descriptor spare_;
  int epoll_ = -1;
  std::uint64_t first_ = 0;
  Clock::time_point resumes_at_ = Clock::time_point::max();
};

}  // namespace tutti::internal
