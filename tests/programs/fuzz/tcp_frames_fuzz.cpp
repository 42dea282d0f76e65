#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <list>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tcp/links.hpp"

// A peer that has proved who it is may send any frames, cut anywhere, over several connections.
// Feeds them to the connections of a rank between its receives, sends and withdrawals. Every
// request ends, and a receive that succeeds has the length and the data of a message of the peer.

namespace {

using namespace tutti;
using backend::mesh::Socket;
using backend::tcp::Frame;
using backend::tcp::Links;
using Data = std::vector<std::byte>;

constexpr std::size_t slots = 4;
constexpr auto whole = std::numeric_limits<std::size_t>::max();
constexpr std::size_t large = 200'000;  // Of several parts.

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

/// The fuzzer's bytes; 0 after the last one.
class Input {
 public:
  explicit Input(std::span<const std::byte> bytes) : bytes_(bytes) {}
  bool is_empty() const { return bytes_.empty(); }
  std::span<const std::byte> take(std::size_t n) {
    const auto taken = bytes_.first(std::min(n, bytes_.size()));
    bytes_ = bytes_.subspan(taken.size());
    return taken;
  }
  std::uint64_t next() {
    const auto byte = take(1);
    return byte.empty() ? 0 : static_cast<std::uint64_t>(byte[0]);
  }

 private:
  std::span<const std::byte> bytes_;
};

struct Message {
  std::uint64_t slot = 0;
  std::uint64_t bytes = 0;
  std::optional<Data> data{};  // Of a message of one frame.
};

/// One connection as the peer sees it.
struct Connection {
  Socket socket{};
  Data unsent{};
  Data text{};  // What has been sent, from the beginning of the last frame.

  /// Sends the oldest bytes, so many at the most.
  void send(std::size_t most, std::vector<Message>& messages) {
    most = std::min(most, unsent.size());
    const auto sent = ::send(socket.get(), unsent.data(), most, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent <= 0) return;  // Closed.
    text.insert(text.end(), unsent.begin(), unsent.begin() + sent);
    unsent.erase(unsent.begin(), unsent.begin() + sent);
    for (Frame frame; text.size() >= sizeof frame;) {
      std::memcpy(&frame, text.data(), sizeof frame);
      const bool has_data = frame.kind == Frame::Kind::data && frame.begin <= frame.end;
      const auto length = has_data ? frame.end - frame.begin : 0;
      if (text.size() - sizeof frame < length) return;
      const auto data = text.begin() + sizeof frame;
      const auto end = data + static_cast<std::ptrdiff_t>(length);
      if (has_data) messages.push_back({frame.slot, frame.bytes});
      if (has_data && length == frame.bytes) messages.back().data.emplace(data, end);
      text.erase(text.begin(), end);
    }
  }
  void receive() const {
    static Data unread(large);
    while (::recv(socket.get(), unread.data(), unread.size(), MSG_DONTWAIT) > 0) {
    }
  }
};

/// A send or a receive.
struct Transfer {
  explicit Transfer(std::size_t bytes) : memory(bytes) {}
  Links::Request request{};
  Data memory;  // Of the exact size, so that the sanitizer notices a byte too many.
};

class Run {
 public:
  explicit Run(Input input) : input_(input), connections_(1 + input_.next() % 3) {
    Links::Channels channels(2);
    for (auto& connection : connections_) {
      int ends[2];
      require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0,
              "a pair of sockets");
      channels[1].push_back(Socket(ends[0]));
      connection.socket = Socket(ends[1]);
    }
    const auto how = input_.next();
    withdraws_ = how % 4 < 2;
    links_.emplace(std::move(channels), how % 2 == 1, std::chrono::nanoseconds(0), [](int) {});
  }

  void run() {
    while (!input_.is_empty()) {
      step();
      const auto look = input_.next();
      if (look % 4 == 0) links_->alert();
      if (look % 4 > 1) (void)links_->has_arrived(1, look / 4 % slots);
    }
    (void)links_->unreceived();
    if (withdraws_) withdraw_all();
    links_->close();
    for (const auto* all : {&sends_, &receives_})
      for (const auto& transfer : *all) require(transfer.request.ended, "all end");
    withdraw_all();
  }

 private:
  void step() {
    auto& connection = connections_[input_.next() % connections_.size()];
    switch (input_.next() % 8) {
      case 0:
        add_frame(connection.unsent);
        return connection.send(whole, messages_);
      case 1:
        add_frame(connection.unsent);
        return connection.send(input_.next(), messages_);
      case 2: {
        const auto raw = input_.take(input_.next() % 64);
        connection.unsent.insert(connection.unsent.end(), raw.begin(), raw.end());
        return connection.send(whole, messages_);
      }
      case 3: {
        auto& receive = receives_.emplace_back(2 * input_.next());
        return links_->recv(receive.request, 1, input_.next() % slots, receive.memory.data(),
                            receive.memory.size());
      }
      case 4: {
        const auto size = input_.next();
        auto& send = sends_.emplace_back(size == 255 ? 2 * large : 16 * size);
        return links_->send(send.request, 1, input_.next() % slots, send.memory.data(),
                            send.memory.size(), input_.next() % 2 == 0);
      }
      case 5:
        return withdraw(receives_, input_.next());
      case 6:
        return withdraw(sends_, input_.next());
      default:
        if (input_.next() == 255) connection.socket.reset();
        return connection.receive();
    }
  }

  /// Adds a frame that is likely to be taken for a right one, and its data.
  void add_frame(Data& text) {
    const auto some_bytes = [&] { return 50 * (input_.next() % 8); };
    const auto how = input_.next();
    auto& frame = last_;
    if (how % 4 < 2) {
      frame = {.number = begun_++, .slot = input_.next() % slots, .bytes = some_bytes()};
      frame.end = how % 2 == 0 ? frame.bytes : some_bytes();
    } else if (how % 4 == 2) {  // Another part.
      frame.kind = Frame::Kind::data;
      frame.begin = frame.end;
      frame.end = how % 8 == 2 ? frame.bytes : some_bytes();
    } else {  // No data.
      const auto kind = how / 4 % 4;
      if (kind == 0)
        frame = {.number = begun_++, .slot = input_.next() % slots, .bytes = some_bytes()};
      frame.kind = static_cast<Frame::Kind>(2 + kind);
      frame.begin = frame.end = 0;
    }
    const auto wrong = input_.next() % 16;
    if (wrong == 0) frame.kind = static_cast<Frame::Kind>(input_.next() % 7);
    if (wrong == 1) frame.number += static_cast<std::uint32_t>(input_.next() % 8) - 4;
    if (wrong == 2) frame.slot = input_.next() % slots;
    if (wrong == 3) frame.bytes = some_bytes();
    if (wrong == 4) frame.bytes = ~input_.next();
    if (wrong == 5) frame.begin = some_bytes();
    if (wrong == 6) frame.end = some_bytes();
    const auto* const head = reinterpret_cast<const std::byte*>(&frame);
    text.insert(text.end(), head, head + sizeof frame);
    if (frame.kind != Frame::Kind::data) return;
    for (auto i = std::min(frame.begin, frame.end); i < frame.end && i < 2000; ++i)
      text.push_back(static_cast<std::byte>(31 * frame.number + 7 * i));
  }

  bool is_right(const Transfer& receive) const {
    const auto& request = receive.request;
    const auto count =
        static_cast<std::ptrdiff_t>(std::min(request.received, receive.memory.size()));
    return std::ranges::any_of(messages_, [&](const Message& m) {
      return m.slot == request.slot && m.bytes == request.received &&
             (!m.data ||
              std::equal(m.data->begin(), m.data->begin() + count, receive.memory.begin()));
    });
  }

  /// Withdraws one, and frees its memory.
  void withdraw(std::list<Transfer>& all, std::uint64_t which) {
    if (all.empty()) return;
    const auto it = std::next(all.begin(), static_cast<std::ptrdiff_t>(which % all.size()));
    (void)links_->withdraw(it->request);
    require(it->request.ended, "a withdrawn one has ended");
    require(it->request.sends || it->request.failed || is_right(*it),
            "a receive gets a message of the peer");
    all.erase(it);
  }
  void withdraw_all() {
    for (auto* all : {&receives_, &sends_})
      while (!all->empty()) withdraw(*all, 0);
  }

  Input input_;
  std::vector<Connection> connections_;
  std::list<Transfer> receives_;
  std::list<Transfer> sends_;
  std::optional<Links> links_;
  std::vector<Message> messages_;  // Of the peer.
  Frame last_{};
  std::uint32_t begun_ = 0;  // Messages.
  bool withdraws_ = false;   // At the end.
};

}  // namespace

// The name is libFuzzer's.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);   // NOLINT
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {  // NOLINT
  Run(Input(std::as_bytes(std::span(data, size)))).run();
  return 0;
}
