#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include <asio/write.hpp>

#include <tutti/store/store.hpp>
#include <tutti/store/token.hpp>

#include "store/answer_limit.hpp"
#include "store/checks.hpp"
#include "store/protocol.hpp"
#include "store/served_store.hpp"
#include "store/tcp_socket.hpp"
#include "values/fail.hpp"
#include "values/fork_guard.hpp"

namespace [[gnu::visibility("default")]] tutti {
namespace {

using namespace std::chrono_literals;
using asio::ip::tcp;
using internal::Outcome;
using internal::Request;
using internal::Verb;
using Clock = Deadline::Clock;

/// The server enforces the deadline of a get. The client waits `grace` longer for the reply, and at
/// least `round_trip`, so a deadline that has almost passed allows one round trip.
constexpr auto grace = 50ms;
constexpr auto round_trip = 500ms;

/// One connection to a store server, for any number of threads. A reply has the number of its
/// request, so a waiting get delays no other request. There is no background thread: one of the
/// waiting threads runs Asio for all of them. When it has its answer, another waiting thread takes
/// over.
class Connection {
 public:
  struct Answer {
    Outcome outcome{};
    Errc code{};   ///< For Outcome::error.
    Bytes body{};  ///< The value, or the text of the error.
  };

  Connection(const std::string& host, int port, std::chrono::nanoseconds timeout,
             const StoreIdentity& identity)
      : name_("store tcp://" + internal::endpoint_text(host, port)),
        wire_(std::make_unique<Wire>(host, port, timeout, identity)) {
    wire_->io.restart();  // Asio stopped after connecting.
    receive();
  }
  ~Connection() {
    // A child only closes its descriptor: the connection is the parent's.
    if (fork_guard_.forked())
      ::close(wire_.release()->socket.native_handle());
    else
      internal::shut_down(wire_->socket);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Empty if no answer came before the limit: the connection stays usable, and a later answer is
  /// dropped. @throws Error peer_lost when the connection has ended, backend for an invalid reply,
  /// resource_exhausted: every later call then throws the same error. forked in a child.
  std::optional<Answer> call(Request request, Clock::time_point limit);

  const std::string& name() const noexcept { return name_; }
  std::string local_address() const;
  bool is_served_here() const noexcept { return internal::ends_here(wire_->socket); }

 private:
  struct Wire {
    Wire(const std::string& host, int port, std::chrono::nanoseconds timeout,
         const StoreIdentity& identity)
        : socket(internal::connect_to_store(io, host, port, timeout, identity)) {}
    asio::io_context io{1};
    tcp::socket socket;
  };
  struct Outgoing {
    std::uint64_t id;
    Bytes frame;
  };
  void send();
  void receive();
  void deliver(const internal::Frame& frame);
  void end(Errc code, const std::string& why);

  const std::string name_;
  std::unique_ptr<Wire> wire_;
  internal::ForkGuard fork_guard_;
  std::atomic<std::uint64_t> last_id_{0};

  std::mutex mutex_;  // Guards all members below, and starting an operation on the socket.
  std::condition_variable changed_;
  std::optional<Error> broken_;
  bool runs_ = false;         // A waiting thread runs Asio.
  std::deque<Outgoing> out_;  // Asio is sending the first one.
  internal::FrameReader reader_{internal::max_reply_bytes};
  std::map<std::uint64_t, std::optional<Answer>> waiting_;
  Bytes scratch_ = Bytes(std::size_t{64} << 10);
};

std::optional<Connection::Answer> Connection::call(Request request, Clock::time_point limit) {
  if (fork_guard_.forked())
    internal::failf(Errc::forked, "{} was opened before fork(); open it again in the child", name_);
  request.id = ++last_id_;
  auto frame = encode_request(request);

  std::unique_lock lock(mutex_);
  if (broken_) throw Error(*broken_);
  const auto place = waiting_.try_emplace(request.id).first;
  out_.push_back({request.id, std::move(frame)});
  if (out_.size() == 1) send();

  const auto over = [&] { return place->second || broken_ || Clock::now() >= limit; };
  while (!over()) {
    if (runs_) {
      changed_.wait_until(lock, std::min(limit, Clock::now() + 1h));
      continue;
    }
    runs_ = true;
    while (!over()) {
      lock.unlock();
      try {
        (void)wire_->io.run_one_until(limit);
        lock.lock();
      } catch (const std::exception& error) {  // Most likely bad_alloc.
        lock.lock();
        end(Errc::resource_exhausted, error.what());
      }
    }
    runs_ = false;
    changed_.notify_all();
  }
  auto mine = waiting_.extract(place);
  if (mine.mapped()) return std::move(mine.mapped());
  if (broken_) throw Error(*broken_);
  // A request of which no byte was sent is withdrawn.
  const auto unsent = std::ranges::find(out_, request.id, &Outgoing::id);
  if (unsent != out_.end() && unsent != out_.begin()) out_.erase(unsent);
  return std::nullopt;
}

void Connection::send() {
  asio::async_write(wire_->socket, asio::buffer(out_.front().frame),
                    [this](std::error_code error, std::size_t) {
                      const std::lock_guard lock(mutex_);
                      out_.pop_front();
                      // The connection does not end here: the received data may hold the reason,
                      // such as a refusal.
                      if (error) out_.clear();
                      if (!out_.empty()) send();
                    });
}

void Connection::receive() {
  wire_->socket.async_read_some(
      asio::buffer(scratch_), [this](std::error_code error, std::size_t bytes) {
        const std::lock_guard lock(mutex_);
        if (error == asio::error::eof)
          return end(Errc::peer_lost, "the server has closed the connection");
        if (error) return end(Errc::peer_lost, error.message());
        try {
          reader_.feed(std::span(scratch_).first(bytes));
          while (const auto frame = reader_.next()) deliver(*frame);
          if (!broken_) receive();
        } catch (const Error& wrong) {
          end(Errc::backend, wrong.message());
        }
      });
}

void Connection::deliver(const internal::Frame& frame) {
  const auto outcome = static_cast<Outcome>(frame.kind);
  Bytes body(frame.body.begin(), frame.body.end());
  if (outcome == Outcome::error && frame.id == 0)
    return end(Errc::backend, internal::to_text(body));
  if (outcome < Outcome::value || outcome > Outcome::error || frame.id == 0 ||
      frame.id > last_id_.load())
    internal::failf(Errc::backend, "the server sent an invalid reply: kind {} to request {} of {}",
                    frame.kind, frame.id, last_id_.load());
  const auto waiting = waiting_.find(frame.id);
  if (waiting == waiting_.end()) return;  // The caller's deadline has passed.
  waiting->second = Answer{
      .outcome = outcome,
      .code = static_cast<Errc>(std::min(frame.code, static_cast<std::uint8_t>(Errc::backend))),
      .body = std::move(body)};
  changed_.notify_all();
}

void Connection::end(Errc code, const std::string& why) {
  if (broken_) return;
  broken_.emplace(code, fmt::format("{}: {}", name_, why));
  changed_.notify_all();
}

std::string Connection::local_address() const {
  std::error_code error;
  const auto own = internal::plain(wire_->socket.local_endpoint(error).address());
  if (error) return {};
  const auto servers = internal::plain(wire_->socket.remote_endpoint(error).address());
  // The loopback interface carries what a host sends to itself, whatever the address. Of a
  // link-local one the interface is known.
  const bool link_local = own.is_v6() && own.to_v6().is_link_local();
  if (own == servers && !own.is_loopback() && !link_local) return own.is_v6() ? "::1" : "127.0.0.1";
  return own.to_string();
}

class TcpStore final : public Store, public internal::ServedStore {
 public:
  TcpStore(const std::string& host, int port, std::chrono::nanoseconds timeout,
           const StoreIdentity& identity)
      : timeout_(timeout), identity_(identity), connection_(host, port, timeout, identity) {}

  using Store::set;
  void set(std::string_view key, std::span<const std::byte> value) override {
    internal::check_key(key);
    internal::check_value(key, value.size());
    (void)ask({.verb = Verb::set, .key = key, .value = value});
  }

  std::optional<Bytes> try_get(std::string_view key) override {
    internal::check_key(key);
    return ask({.verb = Verb::try_get, .key = key});
  }

  Bytes get(std::string_view key, Deadline deadline) override {
    internal::check_key(key);
    const auto left = deadline.remaining();
    const bool for_ever = left == std::chrono::nanoseconds::max();
    const auto limit = for_ever
                           ? Clock::time_point::max()
                           : std::max(later(deadline.time(), grace), Clock::now() + round_trip);
    auto answer = connection_.call({.verb = Verb::get, .key = key, .number = left.count()}, limit);
    if (!answer)
      internal::failf(Errc::timeout,
                      "store: key '{}' did not appear before the deadline; {} does not answer", key,
                      connection_.name());
    return value_of(*std::move(answer)).value_or(Bytes{});
  }

  std::int64_t add(std::string_view key, std::int64_t delta) override {
    internal::check_key(key);
    const auto text =
        internal::to_text(ask({.verb = Verb::add, .key = key, .number = delta}).value_or(Bytes{}));
    std::int64_t result = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), result);
    if (error != std::errc() || end != text.data() + text.size())
      internal::failf(Errc::backend, "{}: the server answered add with '{}', which is not a number",
                      connection_.name(), text);
    return result;
  }

  Bytes compare_set(std::string_view key, std::span<const std::byte> expected,
                    std::span<const std::byte> desired) override {
    internal::check_key(key);
    internal::check_value(key, desired.size());
    // No stored value can equal a value above the limit, so it is not sent.
    if (expected.size() > max_value_bytes) return try_get(key).value_or(Bytes{});
    return ask({.verb = Verb::compare_set, .key = key, .expected = expected, .value = desired})
        .value_or(Bytes{});
  }

  bool erase(std::string_view key) override {
    internal::check_key(key);
    return ask({.verb = Verb::erase, .key = key}).has_value();
  }

  std::string local_address() const override { return connection_.local_address(); }
  bool is_served_here() const noexcept override { return connection_.is_served_here(); }
  StoreIdentity identity() const override { return identity_; }

 private:
  static Clock::time_point later(Clock::time_point when, Clock::duration by) {
    return when > Clock::time_point::max() - by ? Clock::time_point::max() : when + by;
  }

  /// Runs a request that the server answers at once.
  std::optional<Bytes> ask(const Request& request) {
    const auto limit = std::min(timeout_, internal::AnswerLimit::current());
    auto answer = connection_.call(request, later(Clock::now(), limit));
    if (!answer)
      internal::failf(
          Errc::timeout,
          "{}: no answer to {} '{}' within {:.3g} s; the server may or may not have done it",
          connection_.name(), internal::name_of(request.verb), request.key,
          std::chrono::duration<double>(limit).count());
    return value_of(*std::move(answer));
  }

  static std::optional<Bytes> value_of(Connection::Answer answer) {
    if (answer.outcome == Outcome::error) fail(answer.code, internal::to_text(answer.body));
    if (answer.outcome == Outcome::nothing) return std::nullopt;
    return std::move(answer.body);
  }

  const std::chrono::nanoseconds timeout_;
  const StoreIdentity identity_;
  Connection connection_;
};

}  // namespace

std::shared_ptr<Store> make_tcp_store(const std::string& host, int port,
                                      std::chrono::nanoseconds timeout) {
  return make_tcp_store(host, port, timeout, StoreIdentity{});
}

std::shared_ptr<Store> make_tcp_store(const std::string& host, int port,
                                      std::chrono::nanoseconds timeout,
                                      const StoreIdentity& identity) {
  if (host.empty()) fail(Errc::invalid_argument, "make_tcp_store: the host is empty");
  if (port < 1 || port > 65535)
    internal::failf(Errc::invalid_argument, "make_tcp_store: port is {}; it must be 1 to 65535",
                    port);
  try {
    return std::make_shared<TcpStore>(host, port, timeout, identity);
  } catch (const std::system_error& error) {
    internal::failf(Errc::resource_exhausted, "store {}: cannot open a socket: {}",
                    internal::endpoint_text(host, port), error.what());
  }
}

}  // namespace tutti
