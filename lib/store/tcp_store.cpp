#include <charconv>
#include <chrono>
#include <utility>

#include <tutti/store/store.hpp>

#include "store/checks.hpp"
#include "store/protocol.hpp"
#include "store/tcp_connect.hpp"
#include "store/tcp_connection.hpp"
#include "values/fail.hpp"

namespace [[gnu::visibility("default")]] tutti {
namespace {

using namespace std::chrono_literals;
using internal::Outcome;
using internal::Request;
using internal::Verb;
using Clock = Deadline::Clock;

/// The server watches the deadline of a get; its word is given this long to arrive. And a deadline
/// that has all but passed leaves time for one question.
constexpr auto grace = 50ms;
constexpr auto round_trip = 500ms;

class TcpStore final : public Store {
 public:
  TcpStore(const std::string& host, int port, std::chrono::nanoseconds timeout)
      : timeout_(timeout),
        connection_(internal::connect_to_store(host, port, timeout),
                    "store tcp://" + internal::endpoint_text(host, port)) {}

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
      internal::failf(Errc::backend, "{}: '{}' is no answer to add", connection_.name(), text);
    return result;
  }

  Bytes compare_set(std::string_view key, std::span<const std::byte> expected,
                    std::span<const std::byte> desired) override {
    internal::check_key(key);
    internal::check_value(key, desired.size());
    // No value can be equal to one that is too long; it need not travel.
    if (expected.size() > max_value_bytes) return try_get(key).value_or(Bytes{});
    return ask({.verb = Verb::compare_set, .key = key, .expected = expected, .value = desired})
        .value_or(Bytes{});
  }

  bool erase(std::string_view key) override {
    internal::check_key(key);
    return ask({.verb = Verb::erase, .key = key}).has_value();
  }

  std::string local_address() const override { return connection_.local_address(); }

 private:
  static Clock::time_point later(Clock::time_point when, Clock::duration by) {
    return when > Clock::time_point::max() - by ? Clock::time_point::max() : when + by;
  }

  /// What the server answers at once.
  std::optional<Bytes> ask(const Request& request) {
    auto answer = connection_.call(request, later(Clock::now(), timeout_));
    if (!answer)
      internal::failf(Errc::timeout,
                      "{}: no answer to {} '{}' within {:.3g} s; it may have happened or not",
                      connection_.name(), internal::name_of(request.verb), request.key,
                      std::chrono::duration<double>(timeout_).count());
    return value_of(*std::move(answer));
  }

  static std::optional<Bytes> value_of(internal::TcpStoreConnection::Answer answer) {
    if (answer.outcome == Outcome::error) fail(answer.code, internal::to_text(answer.body));
    if (answer.outcome == Outcome::nothing) return std::nullopt;
    return std::move(answer.body);
  }

  const std::chrono::nanoseconds timeout_;
  internal::TcpStoreConnection connection_;
};

}  // namespace

std::shared_ptr<Store> make_tcp_store(const std::string& host, int port,
                                      std::chrono::nanoseconds timeout) {
  if (host.empty()) fail(Errc::invalid_argument, "make_tcp_store: the host is empty");
  if (port < 1 || port > 65535)
    internal::failf(Errc::invalid_argument, "make_tcp_store: port is {}; it is 1 to 65535", port);
  return std::make_shared<TcpStore>(host, port, timeout);
}

}  // namespace tutti
