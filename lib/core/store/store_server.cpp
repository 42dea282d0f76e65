#include <tutti/store/store_server.hpp>

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include <asio/steady_timer.hpp>
#include <asio/write.hpp>

#include "store/handshake.hpp"
#include "store/log_limit.hpp"
#include "store/protocol.hpp"
#include "store/requests.hpp"
#include "store/tcp_socket.hpp"
#include "values/fail.hpp"
#include "values/fork_guard.hpp"

namespace tutti::internal {
namespace {

using namespace std::chrono_literals;
using asio::ip::tcp;
using Clock = Deadline::Clock;

constexpr std::size_t read_bytes = std::size_t{256} << 10;
/// The unsent bytes of a client above which the server does not read from it.
constexpr std::size_t max_unsent = std::size_t{1} << 20;
/// The approximate cost of a reply, excluding its bytes.
constexpr std::size_t piece_bytes = 128;

/// While this object lives, blocks all signals in the thread that made it. A thread started
/// meanwhile inherits this, so signals go to the program's other threads.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~NoSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t before_{};
};

/// A reply that is being sent. Shares its value with the table.
struct Piece {
  Bytes head;
  StoreTable::Value value{};
  std::size_t cost() const {
    return head.size() + (value == nullptr ? 0 : value->size()) + piece_bytes;
  }
};

struct Client {
  Client(std::uint64_t number, tcp::socket accepted)
      : id(number), socket(std::move(accepted)), limit(socket.get_executor()) {}
  const StoreRequests::Client id;
  tcp::socket socket;
  asio::steady_timer limit;
  bool joined = false;
  bool leaving = false;  ///< No longer read from; closed when everything is sent.
  bool reading = false;
  ServerHandshake handshake{};
  FrameReader reader{max_request_bytes};
  std::deque<Piece> out{};
  std::size_t sending = 0;  ///< Number of first pieces of `out` that Asio is sending.
  std::size_t unsent = 0;   ///< The cost of all pieces.
  std::size_t counted = 0;  ///< This client's part of input_bytes_.
};
using ClientPtr = std::shared_ptr<Client>;

/// A server's thread, between the sockets and StoreRequests. It blocks only in one wait for all
/// sockets.
class ServerLoop {
 public:
  explicit ServerLoop(const StoreServerOptions& options)
      : options_(options),
        admission_(options),
        listener_(
            io_, options.host, options.port, !options.token,
            [this](tcp::socket socket) { take_in(std::move(socket)); },
            [this] { return drop_oldest_unauthenticated(); },
            [this](tcp::socket& socket) {
              refuse(socket, fmt::format("the process of the store has {} clients and no free file "
                                         "descriptor; raise its limit (ulimit -n)",
                                         clients_.size()));
            }),
        requests_({.keys = options.max_keys, .bytes = options.max_total_bytes},
                  [this](std::uint64_t id, const Reply& reply) { queue(id, reply); }) {
    if (!options_.logger) options_.logger = default_logger();
    options_.handshake_timeout =
        std::clamp<std::chrono::nanoseconds>(options_.handshake_timeout, 1ms, 24h);
    if (options_.max_clients < 1)
      failf(Errc::invalid_argument, "store server: max_clients is {}; it must be 1 or more",
            options_.max_clients);
    const NoSignals no_signals;
    thread_ = std::thread([this] { run(); });
  }

  ~ServerLoop() {
    io_.stop();
    thread_.join();
    for (auto& [id, client] : clients_) shut_down(client->socket);
  }
  ServerLoop(const ServerLoop&) = delete;
  ServerLoop& operator=(const ServerLoop&) = delete;

  bool forked() const noexcept { return fork_guard_.forked(); }
  int port() const noexcept { return listener_.port(); }

  int clients() const {
    refuse_child();
    const std::lock_guard lock(mutex_);
    return joined_;
  }

  bool wait_until_left(Deadline deadline) {
    refuse_child();
    std::unique_lock lock(mutex_);
    const auto none_left = [&] { return joined_ == 0; };
    if (deadline.time() != Clock::time_point::max())
      return left_.wait_until(lock, deadline.time(), none_left);
    left_.wait(lock, none_left);
    return true;
  }

 private:
  void refuse_child() const {
    if (forked())
      fail(Errc::forked,
           "the store server was made before fork(); it runs only in the parent process");
  }

  void run() noexcept {
    while (!io_.stopped()) {
      try {
        io_.run();
      } catch (const std::exception& error) {  // Most likely bad_alloc.
        log(LogLevel::error, error.what());
        std::this_thread::sleep_for(10ms);
      }
    }
  }

  void log(LogLevel level, const std::string& text) const noexcept {
    try {
      options_.logger(level, fmt::format("store server {}: {}", listener_.name(), text));
    } catch (...) {  // A logger that throws must not affect the clients.
    }
  }

  // --- New clients

  void take_in(tcp::socket socket) {
    if (clients_.size() >= static_cast<std::size_t>(options_.max_clients) &&
        !drop_oldest_unauthenticated())
      return refuse(socket, fmt::format("the server has {} clients, which is its limit",
                                        options_.max_clients));
    socket.non_blocking(true);
    tune(socket, silence_of_client);
    const auto client = std::make_shared<Client>(++last_id_, std::move(socket));
    clients_.emplace(client->id, client);
    limit_time(client);
    receive(client);
  }

  void refuse(tcp::socket& socket, const std::string& text) {
    const auto words = encode_refusal(Errc::resource_exhausted, text);
    // The send buffer of a new connection has room for these bytes.
    (void)::send(socket.native_handle(), words.data(), words.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    shut_down(socket);
    if (const auto clients = full_.count(Clock::now()))
      log(LogLevel::warning, clients_text(*clients, "refused", text));
  }

  static std::string clients_text(std::uint64_t clients, std::string_view fate,
                                  std::string_view why) {
    return clients == 1 ? fmt::format("a client was {}: {}", fate, why)
                        : fmt::format("{} clients were {}; the last: {}", clients, fate, why);
  }

  /// Logs a client that failed the handshake, now or at the end of the minute.
  void log_failed(std::string_view why) {
    last_failure_ = why;
    log_failures(failed_.count(Clock::now()));
  }

  void log_failures(std::optional<std::uint64_t> clients) {
    if (!clients) return;
    log(LogLevel::warning, clients_text(*clients, "not admitted", last_failure_));
    failures_.expires_after(LogLimit::interval);
    failures_.async_wait([this](std::error_code ended) {
      if (!ended) log_failures(failed_.due(Clock::now()));
    });
  }

  /// Closes the oldest client without a handshake, so that a rank can connect in its place.
  bool drop_oldest_unauthenticated() {
    if (unauthenticated_.empty()) return false;
    close(clients_.at(*unauthenticated_.begin()));
    return true;
  }

  // --- Lifetime of a client

  /// Makes `step` the handler of an operation of this client. An exception, most likely bad_alloc,
  /// ends only this client.
  template <typename Step>
  auto guarded(const ClientPtr& client, Step step) {
    return [this, client, step](std::error_code error, auto...) {
      if (!client->socket.is_open()) return;
      try {
        step(client, error);
      } catch (const std::exception& failure) {
        log(LogLevel::error, failure.what());
        close(client);
      }
    };
  }

  /// Closes the client after handshake_timeout unless it completes the handshake. A leaving client
  /// is always closed then.
  void limit_time(const ClientPtr& client) {
    unauthenticated_.insert(client->id);
    client->limit.expires_after(options_.handshake_timeout);
    client->limit.async_wait(guarded(client, [this](const ClientPtr& late, std::error_code error) {
      if (error || !unauthenticated_.contains(late->id)) return;
      if (!late->leaving) log_failed("it did not complete the handshake in time");
      close(late);
    }));
  }

  void leave(const ClientPtr& client) {
    client->leaving = true;
    limit_time(client);
  }

  void close(ClientPtr client) {
    requests_.forget(client->id);
    unauthenticated_.erase(client->id);
    clients_.erase(client->id);
    input_bytes_ -= client->counted;
    client->limit.cancel();
    shut_down(client->socket);
    if (client->joined) count_clients(-1);
  }

  void count_clients(int change) {
    {
      const std::lock_guard lock(mutex_);
      joined_ += change;
    }
    if (change < 0) left_.notify_all();
  }

  // --- Input of clients

  void receive(const ClientPtr& client) {
    if (!client->socket.is_open() || client->reading || client->leaving ||
        client->unsent > max_unsent)
      return;
    client->reading = true;
    client->socket.async_wait(
        tcp::socket::wait_read,
        guarded(client, [this](const ClientPtr& ready, std::error_code error) {
          ready->reading = false;
          if (error) return close(ready);
          read(ready);
          receive(ready);
        }));
  }

  /// Reads into one buffer that all clients share; 10,000 clients would need much memory otherwise.
  void read(const ClientPtr& client) {
    std::error_code error;
    const auto n = client->socket.read_some(asio::buffer(scratch_), error);
    if (error == asio::error::would_block || error == asio::error::interrupted) return;
    if (error) return close(client);
    auto bytes = std::span<const std::byte>(scratch_).first(n);
    if (!client->joined) receive_handshake(client, bytes);
    if (!client->joined || client->leaving) return;
    client->reader.feed(bytes);
    work(client);
  }

  void receive_handshake(const ClientPtr& client, std::span<const std::byte>& bytes) {
    auto& handshake = client->handshake;
    auto reply = handshake.take(bytes, admission_);
    const auto state = handshake.state();
    if (state == ServerHandshake::State::foreign) {
      log_failed("it does not speak the protocol");
      return close(client);
    }
    if (state == ServerHandshake::State::refused) log_failed(handshake.refusal(reply));
    if (state == ServerHandshake::State::accepted) {
      client->joined = true;
      unauthenticated_.erase(client->id);
      client->limit.cancel();
      count_clients(1);
    }
    if (!reply.empty()) push(client, {.head = std::move(reply)});
    if (state == ServerHandshake::State::refused) leave(client);
  }

  /// Handles the complete requests in the buffer.
  void work(const ClientPtr& client) {
    try {
      while (!client->leaving && client->unsent <= max_unsent) {
        const auto frame = client->reader.next();
        if (!frame) break;
        try {
          requests_.handle(client->id, decode_request(*frame), Clock::now());
        } catch (const Error& error) {
          queue(client->id, error_reply(frame->id, error));
          leave(client);
        }
      }
    } catch (const Error& error) {  // The stream cannot be read after this.
      queue(client->id, error_reply(0, error));
      leave(client);
    }
    count_input(*client);
    watch_expiry();
  }

  void count_input(Client& client) {
    const auto count = [&] {
      const auto now = client.reader.buffered();
      input_bytes_ += now - client.counted;
      client.counted = now;
    };
    count();
    if (input_bytes_ <= options_.max_total_bytes) return;
    if (const auto request = client.reader.skip_unfinished()) {
      const auto text = fmt::format(
          "store: unfinished requests of all clients have {} bytes; at most {} are held",
          input_bytes_, options_.max_total_bytes);
      queue(client.id, error_reply(*request, Error(Errc::resource_exhausted, text)));
    }
    count();
  }

  /// Ends waiting gets at their deadlines.
  void watch_expiry() {
    const auto next = requests_.next_expiry();
    if (next >= expires_at_) return;
    expires_at_ = next;
    expiry_.expires_at(next);
    expiry_.async_wait([this](std::error_code error) {
      if (error) return;
      expires_at_ = Clock::time_point::max();
      requests_.expire(Clock::now());
      watch_expiry();
    });
  }

  // --- Replies to clients

  void queue(std::uint64_t id, const Reply& reply) {
    const auto found = clients_.find(id);
    if (found == clients_.end()) return;
    const auto text = std::as_bytes(std::span(reply.text));
    const Frame header{.kind = static_cast<std::uint8_t>(reply.outcome),
                       .code = static_cast<std::uint8_t>(reply.code),
                       .id = reply.id};
    const auto bytes = reply.value == nullptr ? text.size() : reply.value->size();
    Piece piece{.head = encode_frame_header(header, bytes), .value = reply.value};
    piece.head.insert(piece.head.end(), text.begin(), text.end());
    push(found->second, std::move(piece));
  }

  void push(const ClientPtr& client, Piece piece) {
    if (client->leaving) return;
    client->unsent += piece.cost();
    client->out.push_back(std::move(piece));
    if (client->sending == 0) send(client);
  }

  void send(const ClientPtr& client) {
    std::vector<asio::const_buffer> buffers;
    for (const auto& piece : client->out) {
      buffers.push_back(asio::buffer(piece.head));
      if (piece.value != nullptr) buffers.push_back(asio::buffer(*piece.value));
    }
    client->sending = client->out.size();
    asio::async_write(client->socket, buffers,
                      guarded(client, [this](const ClientPtr& ready, std::error_code error) {
                        if (error) return close(ready);
                        for (; ready->sending > 0; --ready->sending) {
                          ready->unsent -= ready->out.front().cost();
                          ready->out.pop_front();
                        }
                        if (!ready->out.empty()) send(ready);
                        if (ready->leaving && ready->out.empty()) return close(ready);
                        if (!ready->joined) return;
                        work(ready);
                        receive(ready);
                      }));
  }

  StoreServerOptions options_;
  const StoreAdmission admission_;
  ForkGuard fork_guard_;
  asio::io_context io_{1};
  StoreListener listener_;
  std::uint64_t last_id_ = 0;
  std::map<std::uint64_t, ClientPtr> clients_;
  std::set<std::uint64_t> unauthenticated_;  // Clients that are closed at their time limit.
  StoreRequests requests_;
  asio::steady_timer expiry_{io_};
  Clock::time_point expires_at_ = Clock::time_point::max();
  std::size_t input_bytes_ = 0;  // Bytes of unfinished frames of all clients.
  Bytes scratch_ = Bytes(read_bytes);
  LogLimit full_;    // Clients for which there is no room.
  LogLimit failed_;  // Clients that failed the handshake.
  std::string last_failure_;
  asio::steady_timer failures_{io_};

  mutable std::mutex mutex_;
  std::condition_variable left_;
  int joined_ = 0;  // Under mutex_.

  std::thread thread_;
};

}  // namespace
}  // namespace tutti::internal

namespace [[gnu::visibility("default")]] tutti {

class StoreServer::Impl : public internal::ServerLoop {
 public:
  using ServerLoop::ServerLoop;
};

StoreServer::StoreServer(const StoreServerOptions& options) try
    : impl_(std::make_unique<Impl>(options)) {
} catch (const std::system_error& error) {
  internal::failf(Errc::resource_exhausted, "store server: cannot start: {}", error.what());
}

StoreServer::~StoreServer() {
  // A forked child has no server thread and must not touch the connections.
  if (impl_->forked()) (void)impl_.release();
}

int StoreServer::port() const noexcept {
  return impl_->port();
}

int StoreServer::clients() const {
  return impl_->clients();
}

bool StoreServer::wait_until_left(Deadline deadline) {
  return impl_->wait_until_left(deadline);
}

}  // namespace tutti
