#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace tutti::test {

/// One end of a TCP connection on loopback that sends arbitrary bytes. Functions that wait throw
/// after ten seconds.
class TcpPeer {
 public:
  explicit TcpPeer(int descriptor);
  /// Connects to 127.0.0.1.
  static TcpPeer to(int port);
  TcpPeer(TcpPeer&& other) noexcept;
  TcpPeer& operator=(TcpPeer&&) = delete;
  ~TcpPeer();

  void send(std::span<const std::byte> bytes);
  void send(std::string_view text);
  /// The number of bytes that could be sent without waiting.
  std::size_t send_some(std::span<const std::byte> bytes);
  std::vector<std::byte> read(std::size_t bytes);
  /// Reads until the other side closes; returns the bytes.
  std::string read_to_end();
  /// Reads and discards until the other side closes. False if the time ends first.
  bool closed_within(std::chrono::milliseconds time);
  /// Makes close() reset the connection instead of ending it.
  void reset_on_close();
  void end_of_sending();

 private:
  bool wait(short events, std::chrono::milliseconds time) const;
  int descriptor_;
};

/// A server on 127.0.0.1 that passes each of its connections, one after the other, to `serve`.
class TcpScript {
 public:
  explicit TcpScript(std::function<void(TcpPeer& peer, int connection)> serve);
  ~TcpScript();
  TcpScript(const TcpScript&) = delete;
  TcpScript& operator=(const TcpScript&) = delete;
  int port() const { return port_; }

 private:
  int port_ = 0;  // Before the listener, whose constructor sets it.
  int listener_;
  std::function<void(TcpPeer&, int)> serve_;
  std::thread thread_;
};

/// A port on 127.0.0.1 without a listener.
int free_port();

}  // namespace tutti::test
