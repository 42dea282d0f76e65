#include "torch/c10d_store.hpp"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <tutti/error.hpp>

namespace tutti::c10d_door {
namespace {

using namespace std::chrono_literals;
using Value = std::vector<std::uint8_t>;

constexpr auto first_pause = 200us;
constexpr auto longest_pause = 10ms;

Value to_value(std::span<const std::byte> bytes) {
  const auto* const data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  return {data, data + bytes.size()};
}

Bytes to_bytes(const Value& value) {
  const auto* const data = reinterpret_cast<const std::byte*>(value.data());
  return {data, data + value.size()};
}

/// Whether nothing listens at the address any more, found without waiting for long.
bool is_closed(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return false;
  bool refused = false;
  for (const auto* at = found; at != nullptr; at = at->ai_next) {
    const int socket =
        ::socket(at->ai_family, at->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, at->ai_protocol);
    if (socket < 0) continue;
    int error = ::connect(socket, at->ai_addr, at->ai_addrlen) == 0 ? 0 : errno;
    if (pollfd connected{socket, POLLOUT, 0}; error == EINPROGRESS && ::poll(&connected, 1, 400)) {
      socklen_t bytes = sizeof error;
      ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &bytes);
    }
    ::close(socket);
    refused = error == ECONNREFUSED;
    if (!refused) break;
  }
  ::freeaddrinfo(found);
  return refused;
}

class StoreOverC10d final : public Store {
 public:
  explicit StoreOverC10d(const c10::intrusive_ptr<::c10d::Store>& store) : store_(store->clone()) {
    auto* inner = dynamic_cast<::c10d::PrefixStore*>(store_.get());
    server_ = c10::dynamic_intrusive_pointer_cast<::c10d::TCPStore>(
        inner == nullptr ? store_ : inner->getUnderlyingNonPrefixStore());
  }

  using Store::set;
  void set(std::string_view key, std::span<const std::byte> value) override {
    call([&] { store_->set(std::string(key), to_value(value)); });
  }
  std::optional<Bytes> try_get(std::string_view key) override {
    return call([&] { return read(std::string(key)); });
  }
  Bytes get(std::string_view key, Deadline deadline) override {
    for (std::chrono::nanoseconds pause = first_pause;; pause *= 2) {
      if (auto value = try_get(key)) return *std::move(value);
      if (deadline.expired())
        fail(Errc::timeout, "the key '" + std::string(key) + "' is not in the store");
      std::this_thread::sleep_for(
          std::min<std::chrono::nanoseconds>({pause, longest_pause, deadline.remaining()}));
      if (pause > longest_pause) pause = longest_pause;
    }
  }
  std::int64_t add(std::string_view key, std::int64_t delta) override {
    return call([&] { return store_->add(std::string(key), delta); });
  }
  Bytes compare_set(std::string_view key, std::span<const std::byte> expected,
                    std::span<const std::byte> desired) override {
    return call([&]() -> Bytes {
      const std::string name(key);
      const auto before = to_value(expected);
      const auto after = to_value(desired);
      if (before == after && !before.empty()) return read(name).value_or(Bytes());
      const auto held = store_->compareSet(name, before, after);
      // For a missing key c10d returns `expected`.
      return !before.empty() && held == before ? Bytes() : to_bytes(held);
    });
  }
  bool erase(std::string_view key) override {
    return call([&] { return store_->deleteKey(std::string(key)); });
  }

 private:
  /// One step, which never waits: for a missing key compareSet() of c10d returns `expected` and
  /// sets nothing. Between check() and get() another rank may erase the key, and get() would wait.
  std::optional<Bytes> read(const std::string& name) {
    static const Value missing{'t', 'u', 't', 't', 'i', '/', 'm', 'i', 's', 's', 'i', 'n', 'g'};
    const auto held = store_->compareSet(name, missing, missing);
    if (held == missing) return std::nullopt;
    return to_bytes(held);
  }

  template <typename F>
  auto call(F&& use) -> decltype(use()) {
    const std::lock_guard lock(mutex_);
    check_server();
    try {
      return use();
    } catch (const std::bad_alloc&) {
      fail(Errc::resource_exhausted, "a call of c10d's store is out of memory");
    } catch (const c10::DistNetworkError& error) {
      gone_ = true;
      fail_as(error.what_without_backtrace());
    } catch (const std::exception& error) {
      fail_as(error.what());
    }
  }

  [[noreturn]] static void fail_as(const std::string& why) {
    fail(Errc::peer_lost, "the store of c10d has failed: " + why);
  }

  /// Asks nothing of a server that has gone with its process, as at the end of a program: c10d's
  /// client would log some 30 lines each time. Looks at the server after a pause, not in a loop.
  void check_server() {
    const auto now = std::chrono::steady_clock::now();
    if (server_ != nullptr && !gone_ && now - std::exchange(last_call_, now) > 10 * longest_pause)
      gone_ = is_closed(server_->getHost(), server_->getPort());
    if (gone_) fail_as("its server is gone");
  }

  std::mutex mutex_;  // Of all members.
  c10::intrusive_ptr<::c10d::Store> store_;
  c10::intrusive_ptr<::c10d::TCPStore> server_;  // The one under it; empty if it is another store.
  std::chrono::steady_clock::time_point last_call_{};
  bool gone_ = false;
};

}  // namespace

std::shared_ptr<Store> make_store(const c10::intrusive_ptr<::c10d::Store>& store) {
  return std::make_shared<StoreOverC10d>(store);
}

}  // namespace tutti::c10d_door
