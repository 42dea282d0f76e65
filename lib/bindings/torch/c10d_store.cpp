#include "torch/c10d_store.hpp"

#include <dirent.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

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

/// The process with the server of a TCPStore waits so long at its end for the other processes.
constexpr auto longest_farewell = 1s;

Value to_value(std::span<const std::byte> bytes) {
  const auto* const data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  return {data, data + bytes.size()};
}

Bytes to_bytes(const Value& value) {
  const auto* const data = reinterpret_cast<const std::byte*>(value.data());
  return {data, data + value.size()};
}

/// The server of a TCPStore. Its addresses are looked up once, as names may be slow later.
class Server {
 public:
  explicit Server(::c10d::Store& store) {
    auto* const prefix = dynamic_cast<::c10d::PrefixStore*>(&store);
    const auto under = prefix == nullptr ? nullptr : prefix->getUnderlyingNonPrefixStore();
    const auto* tcp = dynamic_cast<::c10d::TCPStore*>(prefix == nullptr ? &store : under.get());
    if (tcp == nullptr) return;
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    port_ = tcp->getPort();
    const auto port = std::to_string(port_);
    name_ = tcp->getHost() + ":" + port;
    if (::getaddrinfo(tcp->getHost().c_str(), port.c_str(), &hints, &found) != 0) return;
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
    for (; found != nullptr; found = found->ai_next) {
      auto& address = addresses_.emplace_back();
      std::memcpy(&address.where, found->ai_addr, found->ai_addrlen);
      address.bytes = found->ai_addrlen;
    }
  }

  /// The host and port of a TCPStore; empty for another store.
  const std::string& name() const noexcept { return name_; }

  /// True if a socket of this process listens at the port.
  bool is_here() const noexcept {
    if (addresses_.empty()) return false;
    // Not std::filesystem::directory_iterator, which ends the process if it has no memory.
    const std::unique_ptr<DIR, int (*)(DIR*)> files(::opendir("/proc/self/fd"), ::closedir);
    while (const auto* file = files == nullptr ? nullptr : ::readdir(files.get())) {
      const int socket = std::atoi(file->d_name);  // 0 for "." and "..".
      int listens = 0;
      socklen_t bytes = sizeof listens;
      sockaddr_storage at{};
      socklen_t of_address = sizeof at;
      if (::getsockopt(socket, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) == 0 && listens != 0 &&
          ::getsockname(socket, reinterpret_cast<sockaddr*>(&at), &of_address) == 0 &&
          port_of(at) == port_)
        return true;
    }
    return false;
  }

  /// True if nothing listens any more. Takes a moment; 0.4 s if a host does not answer.
  bool is_closed() const {
    for (const auto& address : addresses_)
      if (!refuses(address)) return false;
    return !addresses_.empty();
  }

 private:
  struct Address {
    sockaddr_storage where{};
    socklen_t bytes = 0;
  };

  static int port_of(const sockaddr_storage& at) noexcept {
    if (at.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in&>(at).sin_port);
    if (at.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(at).sin6_port);
    return -1;
  }

  static bool refuses(const Address& to) {
    const int socket = ::socket(to.where.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (socket < 0) return false;
    const auto* const where = reinterpret_cast<const sockaddr*>(&to.where);
    int error = ::connect(socket, where, to.bytes) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      pollfd connected{socket, POLLOUT, 0};
      socklen_t bytes = sizeof error;
      if (::poll(&connected, 1, 400) > 0)
        ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &bytes);
    }
    ::close(socket);
    return error == ECONNREFUSED;
  }

  std::vector<Address> addresses_;  // Empty for another store.
  std::string name_;
  int port_ = 0;
};

/// The stores of this process over each TCPStore, which its host and port name.
class Users {
 public:
  /// Returns true for the first store.
  bool enter(const std::string& server) {
    const std::lock_guard lock(mutex_);
    return ++count_[{::getpid(), server}] == 1;
  }
  /// Returns true for the last one.
  bool leave(const std::string& server) {
    const std::lock_guard lock(mutex_);
    const auto entry = count_.find({::getpid(), server});
    if (entry == count_.end() || --entry->second > 0) return false;
    count_.erase(entry);
    return true;
  }
  /// A process has not left in time, so none is awaited any more: it may have died.
  void give_up(const std::string& server) {
    const std::lock_guard lock(mutex_);
    given_up_.insert({::getpid(), server});
  }
  bool has_given_up(const std::string& server) {
    const std::lock_guard lock(mutex_);
    return given_up_.contains({::getpid(), server});
  }

 private:
  using Key = std::pair<pid_t, std::string>;  // A forked process has none.

  std::mutex mutex_;
  std::map<Key, int> count_;
  std::set<Key> given_up_;
};

Users& users() {
  static auto* const made = new Users;  // Never destroyed: a group may end later.
  return *made;
}

class StoreOverC10d final : public Store {
 public:
  explicit StoreOverC10d(const c10::intrusive_ptr<::c10d::Store>& store)
      : given_(store), store_(store->clone()), server_(*store_) {
    if (server_.name().empty() || !users().enter(server_.name())) return;
    try {
      count(entered, 1);
    } catch (...) {
      users().leave(server_.name());
      throw;
    }
  }
  StoreOverC10d(const StoreOverC10d&) = delete;
  StoreOverC10d& operator=(const StoreOverC10d&) = delete;
  /// The process with the server leaves last, so that no other one asks a server that goes
  /// meanwhile: c10d's client would log some 30 lines.
  ~StoreOverC10d() override {
    try {
      const auto& server = server_.name();
      if (server.empty() || !users().leave(server)) return;
      const bool waits = server_.is_here() && !users().has_given_up(server);
      const auto all = waits ? count(entered, 0) : 0;
      const auto limit = Deadline::after(longest_farewell);
      for (auto gone = count(left, 1); gone < all; gone = count(left, 0)) {
        if (limit.expired()) {
          users().give_up(server);
          break;
        }
        std::this_thread::sleep_for(1ms);
      }
    } catch (...) {  // The server is gone.
    }
  }

  using Store::set;
  void set(std::string_view key, std::span<const std::byte> value) override {
    call([&] { store_->set(std::string(key), to_value(value)); });
  }
  std::optional<Bytes> try_get(std::string_view key) override { return try_get(key, true); }
  Bytes get(std::string_view key, Deadline deadline) override {
    bool first = true;
    for (std::chrono::nanoseconds pause = first_pause;; pause *= 2) {
      if (auto value = try_get(key, std::exchange(first, false))) return *std::move(value);
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
  std::optional<Bytes> try_get(std::string_view key, bool first) {
    return call([&] { return read(std::string(key)); }, first);
  }

  /// One step, which never waits: for a missing key compareSet() of c10d returns `expected` and
  /// sets nothing. Between check() and get() another rank may erase the key, and get() would wait.
  std::optional<Bytes> read(const std::string& name) {
    static const Value missing{'t', 'u', 't', 't', 'i', '/', 'm', 'i', 's', 's', 'i', 'n', 'g'};
    const auto held = store_->compareSet(name, missing, missing);
    if (held == missing) return std::nullopt;
    return to_bytes(held);
  }

  /// Adds to a number of processes, which all stores over this TCPStore share.
  std::int64_t count(const char* key, std::int64_t delta) {
    return call([&] {
      auto* const prefix = dynamic_cast<::c10d::PrefixStore*>(store_.get());
      return prefix == nullptr ? store_->add(key, delta)
                               : prefix->getUnderlyingNonPrefixStore()->add(key, delta);
    });
  }

  template <typename F>
  auto call(F&& use, bool first = true) -> decltype(use()) {
    const std::lock_guard lock(mutex_);
    check_server(first);
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
  /// client would log some 30 lines each time. Looks at the server before the first of several
  /// calls, ten times per second at most: each look is a connection.
  void check_server(bool first) {
    const auto now = std::chrono::steady_clock::now();
    if (!gone_ && first && now - last_call_ > 1ms && now - last_look_ > 100ms) {
      gone_ = server_.is_closed();
      last_look_ = now;
    }
    last_call_ = now;
    if (gone_) fail_as("its server is gone");
  }

  static constexpr auto entered = "tutti/processes/entered";
  static constexpr auto left = "tutti/processes/left";

  std::mutex mutex_;                         // Of all members.
  c10::intrusive_ptr<::c10d::Store> given_;  // May own the server.
  c10::intrusive_ptr<::c10d::Store> store_;
  Server server_;
  std::chrono::steady_clock::time_point last_call_{};
  std::chrono::steady_clock::time_point last_look_{};  // At the server.
  bool gone_ = false;
};

}  // namespace

std::shared_ptr<Store> make_store(const c10::intrusive_ptr<::c10d::Store>& store) {
  return std::make_shared<StoreOverC10d>(store);
}

}  // namespace tutti::c10d_door
