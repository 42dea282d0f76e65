#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <string>
#include <system_error>

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/steady_timer.hpp>

#include <tutti/store/token.hpp>

#include "store/log_limit.hpp"

// The connections of a TCP store, at both ends. Only three sources include this header, because
// Asio takes long to compile.

namespace tutti::internal {

/// The limits of tune(). A client answers slowly: it reads only while one of its threads waits, and
/// the limit also ends a connection whose receiver does not read while the kernel's buffers are
/// full.
inline constexpr std::chrono::seconds silence_of_server{10};
inline constexpr std::chrono::seconds silence_of_client{60};

/// Sets options: small frames are sent at once, and the connection ends when the peer's machine has
/// not answered for `limit`.
void tune(asio::ip::tcp::socket& socket, std::chrono::seconds limit) noexcept;

/// Ends a connection even if a forked child still holds the descriptor; close() alone would leave
/// it open.
void shut_down(asio::ip::tcp::socket& socket) noexcept;

/// "host:port", an IPv6 address in brackets.
std::string endpoint_text(const std::string& host, int port);

/// Connects to the store server at host:port and exchanges handshakes. Retries with growing pauses
/// until the timeout, and says why by `warnings`. Runs `io`, which must have no other work. @throws
/// Error timeout without an answer, resource_exhausted when the server is full or this process has
/// no descriptor left, invalid_argument when another program answers or one side has no token,
/// mismatch for another token or identity, unsupported for another version.
asio::ip::tcp::socket connect_to_store(asio::io_context& io, const std::string& host, int port,
                                       std::chrono::nanoseconds timeout,
                                       const StoreIdentity& identity,
                                       WaitWarnings warnings = WaitWarnings());

/// Accepts the clients of a store server. When the process has no descriptor left, a client gets an
/// error through a reserved descriptor, or waits 100 ms. Without this the listening socket would
/// stay readable and keep its thread busy.
class StoreListener {
 public:
  using Accepted = std::function<void(asio::ip::tcp::socket socket)>;
  /// Closes a connection if one can be spared. Returns whether it did.
  using MakeRoom = std::function<bool()>;
  /// Sends the error to a client for which no descriptor is left.
  using Refused = std::function<void(asio::ip::tcp::socket& socket)>;

  /// Listens when it returns; throws as StoreServer does. Host "*": every interface.
  /// Empty host: the same, or only loopback.
  StoreListener(asio::io_context& io, const std::string& host, int port, bool only_loopback,
                Accepted accepted, MakeRoom make_room, Refused refused);
  ~StoreListener();
  StoreListener(const StoreListener&) = delete;
  StoreListener& operator=(const StoreListener&) = delete;

  int port() const noexcept { return port_; }
  const std::string& name() const noexcept { return name_; }

 private:
  struct Listener {
    asio::ip::tcp::acceptor acceptor;
    asio::steady_timer pause;
  };
  void listen_at(asio::ip::tcp::endpoint endpoint, bool both_families, std::error_code& error);
  void listen_on_loopback(int port, std::error_code& error);
  void wait_at(Listener& listener);
  bool accept_at(Listener& listener);

  asio::io_context& io_;
  int port_;
  std::string name_;
  Accepted accepted_;
  MakeRoom make_room_;
  Refused refused_;
  std::list<Listener> listeners_;
  asio::ip::tcp::socket spare_;
};

/// The address, of IPv4 also if the socket is of IPv6.
asio::ip::address plain(const asio::ip::address& address);

/// True if this process has the other end of the connection too.
bool ends_here(const asio::ip::tcp::socket& socket) noexcept;

}  // namespace tutti::internal
