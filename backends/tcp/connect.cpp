#include "connect.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <list>
#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "mesh/secret.hpp"
#include "store/log_limit.hpp"
#include "values/fail.hpp"
#include "values/port_range.hpp"

namespace tutti::backend::tcp {
namespace {

using namespace std::chrono_literals;
namespace crypto = internal::crypto;
using Clock = Deadline::Clock;

constexpr auto time_to_prove = 2s;
constexpr std::size_t most_pending = 256;  // Beside the connections that are expected.
constexpr auto pause_before_again = 50ms;
constexpr int most_accepted_in_a_turn = 64;

/// The first bytes of the rank that opens a connection.
struct Hello {
  std::uint64_t magic = 0x6370742f69747475U;  // "uttI/tcp" in the byte order of the ranks.
  std::int32_t from = -1;
  std::int32_t to = -1;
  std::uint64_t connection = 0;
  crypto::Digest nonce{};
};
static_assert(sizeof(Hello) == 56, "has no padding");
// Then the other rank sends its nonce, the first one its proof, the other one its own: it has
// admitted the connection. With TLS the other rank is the client, and admits the connection when
// its handshake is done.

enum class Side : std::uint8_t { opens = 1, accepts };
constexpr std::uint8_t key_of_tls = 3;

/// The HMAC of the secret over a connection. `what`: the side that proves to know the secret, or
/// key_of_tls.
crypto::Digest hmac_of(const crypto::Digest& secret, std::uint8_t what, const Hello& hello,
                       const crypto::Digest& nonce) {
  std::array<std::byte, 1 + sizeof hello + sizeof nonce> text;  // NOLINT(*-member-init)
  text[0] = std::byte{what};
  std::memcpy(text.data() + 1, &hello, sizeof hello);
  std::memcpy(text.data() + 1 + sizeof hello, nonce.data(), nonce.size());
  return mesh::prove(secret, text);
}

class Address {
 public:
  Address(const std::string& host, int port) {
    addrinfo hints{};
    hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0)
      internal::failf(Errc::backend, "tcp: '{}' is no address", host);
    std::memcpy(&data_, found->ai_addr, found->ai_addrlen);
    length_ = found->ai_addrlen;
    ::freeaddrinfo(found);
  }
  int family() const noexcept { return data_.ss_family; }
  const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&data_); }
  socklen_t length() const noexcept { return length_; }

 private:
  sockaddr_storage data_{};
  socklen_t length_ = 0;
};

/// Empty if the process or the machine has no descriptor left.
mesh::Socket make_socket(int family) {
  return mesh::Socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

[[noreturn]] void no_socket() {
  internal::failf(Errc::resource_exhausted, "tcp: cannot make a socket: {}", std::strerror(errno));
}

void set_no_delay(int socket) {
  const int yes = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

/// A connection whose peer has not yet proved who it is.
struct Pending {
  Pending(mesh::Socket socket, Side mine) : channel(std::move(socket)), side(mine) {}

  Channel channel;  // Empty once the connection has been admitted.
  Side side;
  Clock::time_point begun = Clock::now();
  Hello hello{};
  crypto::Digest nonce{};  // Of the rank that accepts.
  int step = 0;            // Messages that have been received.
  std::array<std::byte, sizeof(Hello)> buffer{};
  std::size_t got = 0;
  bool connecting = false;
  bool waits_to_send = false;
};

class Connector {
 public:
  Connector(internal::Rendezvous& rendezvous, const Listener& listener, int rank,
            const std::vector<PeerAddress>& peers, const crypto::Digest& secret, bool encrypts,
            const Logger& logger)
      : rendezvous_(rendezvous),
        listener_(listener),
        rank_(rank),
        peers_(peers),
        secret_(secret),
        encrypts_(encrypts),
        logger_(logger),
        channels_(peers.size()),
        reasons_(peers.size()),
        reached_(peers.size()) {
    for (std::size_t r = 0; r < peers.size(); ++r)
      if (static_cast<int>(r) != rank) {
        channels_[r].resize(static_cast<std::size_t>(peers[r].connections));
        missing_ += channels_[r].size();
      }
  }
  Connector(const Connector&) = delete;
  Connector& operator=(const Connector&) = delete;

  std::vector<std::vector<Channel>> run() {
    for (int r = 0; r < rank_; ++r)
      for (std::size_t i = 0; i < channels_[static_cast<std::size_t>(r)].size(); ++i) connect(r, i);
    while (missing_ > 0) {
      rendezvous_.check();
      if (rendezvous_.limit().expired()) throw late();
      if (const auto time = warnings_.due(Clock::now()))
        logger_(LogLevel::warning, fmt::format("after {} s: {}", time->count(), late().message()));
      turn();
    }
    return std::exchange(channels_, {});
  }

 private:
  using PendingList = std::list<Pending>;

  void turn() {
    std::vector<pollfd> events{{listener_.descriptor(), POLLIN, 0}};
    for (const auto& s : pending_)
      events.push_back(
          {s.channel.descriptor(), static_cast<short>(s.waits_to_send ? POLLOUT : POLLIN), 0});
    (void)::poll(events.data(), events.size(), again_.empty() ? 20 : 5);
    auto event = events.begin() + 1;
    for (auto s = pending_.begin(); s != pending_.end();) {
      const auto current = s++;
      const bool is_late =
          current->side == Side::accepts && Clock::now() - current->begun > time_to_prove;
      const bool goes_on = event++->revents == 0 ? !is_late : meet(*current);
      if (!current->channel)
        pending_.erase(current);
      else if (!goes_on)
        leave(current);
    }
    if (events[0].revents != 0) accept();
    const auto now = Clock::now();
    for (auto again = std::exchange(again_, {}); const auto& [at, peer, connection] : again)
      if (at <= now)
        connect(peer, connection);
      else
        again_.push_back({at, peer, connection});
  }

  void connect(int peer, std::size_t connection) {
    const auto& to = peers_[static_cast<std::size_t>(peer)];
    const Address address(to.address, to.port);
    auto socket = make_socket(address.family());
    if (!socket) {
      if (!close_one()) no_socket();
      again_.push_back({Clock::now() + pause_before_again, peer, connection});
      return;
    }
    auto& s = pending_.emplace_back(std::move(socket), Side::opens);
    set_no_delay(s.channel.descriptor());
    s.hello.from = rank_;
    s.hello.to = peer;
    s.hello.connection = connection;
    crypto::random(s.hello.nonce);
    s.connecting = s.waits_to_send = true;
    if (::connect(s.channel.descriptor(), address.get(), address.length()) != 0 &&
        errno != EINPROGRESS) {
      reasons_[static_cast<std::size_t>(peer)] = std::strerror(errno);
      leave(std::prev(pending_.end()));
    }
  }

  void accept() {
    auto accepted =
        static_cast<std::size_t>(std::ranges::count(pending_, Side::accepts, &Pending::side));
    for (int i = 0; i < most_accepted_in_a_turn; ++i) {
      mesh::Socket socket(
          ::accept4(listener_.descriptor(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket) {
        if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
        if (!close_one()) no_socket();
        continue;
      }
      set_no_delay(socket.get());
      auto& s = pending_.emplace_back(std::move(socket), Side::accepts);
      crypto::random(s.nonce);
      if (++accepted > most_pending + missing_ && close_one()) --accepted;
    }
  }

  /// Closes the accepted connection that has been silent for longest, or else the oldest one.
  bool close_one() {
    auto found = pending_.end();
    // The newest may not have had time to say anything.
    for (auto s = pending_.begin(); s != pending_.end() && s != std::prev(pending_.end()); ++s) {
      if (s->side != Side::accepts || s->channel.is_encrypted()) continue;
      if (found == pending_.end()) found = s;
      if (s->step == 0 && s->got == 0) {
        found = s;
        break;
      }
    }
    if (found == pending_.end()) return false;
    leave(found);
    return true;
  }

  /// Closes a connection; one that this rank has opened is tried again.
  void leave(PendingList::iterator s) {
    if (s->side == Side::opens)
      again_.push_back({Clock::now() + pause_before_again, s->hello.to,
                        static_cast<std::size_t>(s->hello.connection)});
    pending_.erase(s);
  }

  /// Goes on with a connection. False if it has ended, or its peer has not proved who it is.
  bool meet(Pending& s) {
    if (s.connecting) {
      int why = 0;
      socklen_t length = sizeof why;
      ::getsockopt(s.channel.descriptor(), SOL_SOCKET, SO_ERROR, &why, &length);
      if (why != 0) {
        reasons_[static_cast<std::size_t>(s.hello.to)] = std::strerror(why);
        return false;
      }
      s.connecting = s.waits_to_send = false;
      reached_[static_cast<std::size_t>(s.hello.to)] = true;
      return send(s, &s.hello, sizeof s.hello);
    }
    if (s.channel.is_encrypted()) return shake_hands(s);
    // The first rank's hello; all else is a nonce or a proof.
    const auto wanted =
        s.side == Side::accepts && s.step == 0 ? sizeof(Hello) : sizeof(crypto::Digest);
    const auto n = ::recv(s.channel.descriptor(), s.buffer.data() + s.got, wanted - s.got, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (n <= 0) {
      if (s.side == Side::opens)
        reasons_[static_cast<std::size_t>(s.hello.to)] = "it closed the connection";
      return false;
    }
    s.got += static_cast<std::size_t>(n);
    if (s.got < wanted) return true;
    s.got = 0;
    ++s.step;
    return s.side == Side::opens ? opener_meets(s) : accepter_meets(s);
  }

  bool opener_meets(Pending& s) {
    if (s.step == 1) {
      s.nonce = received(s);
      const auto proof = proof_of(s, Side::opens);
      return send(s, &proof, sizeof proof);
    }
    if (mesh::is_proof(received(s), proof_of(s, Side::accepts)))
      return authenticated(s, Channel::Side::server);
    reasons_[static_cast<std::size_t>(s.hello.to)] =
        "what listens at its address has not proved to be that rank";
    return false;
  }

  bool accepter_meets(Pending& s) {
    if (s.step == 1) {
      std::memcpy(&s.hello, s.buffer.data(), sizeof s.hello);
      const auto& h = s.hello;
      return h.magic == Hello{}.magic && h.to == rank_ && h.from > rank_ &&
             static_cast<std::size_t>(h.from) < channels_.size() &&
             h.connection < channels_[static_cast<std::size_t>(h.from)].size() &&
             send(s, &s.nonce, sizeof s.nonce);
    }
    if (!mesh::is_proof(received(s), proof_of(s, Side::opens))) return false;
    const auto proof = proof_of(s, Side::accepts);
    return send(s, &proof, sizeof proof) && authenticated(s, Channel::Side::client);
  }

  crypto::Digest proof_of(const Pending& s, Side side) const {
    return hmac_of(secret_, static_cast<std::uint8_t>(side), s.hello, s.nonce);
  }

  /// Goes on with a connection whose peer has proved who it is.
  bool authenticated(Pending& s, Channel::Side side) {
    if (!encrypts_) {
      admit(s);
      return true;
    }
    s.begun = Clock::now();
    s.channel.encrypt(side, hmac_of(secret_, key_of_tls, s.hello, s.nonce));
    return shake_hands(s);
  }

  bool shake_hands(Pending& s) {
    const auto state = s.channel.shake_hands();
    s.waits_to_send = state == Channel::Handshake::waits_to_send;
    if (state == Channel::Handshake::done) admit(s);
    if (state == Channel::Handshake::failed && s.side == Side::opens)
      reasons_[static_cast<std::size_t>(s.hello.to)] = "the TLS handshake failed";
    return state != Channel::Handshake::failed;
  }

  static crypto::Digest received(const Pending& s) {
    crypto::Digest digest;
    std::memcpy(digest.data(), s.buffer.data(), digest.size());
    return digest;
  }

  /// The connection is that of a peer. A first one that the peer gave up ends.
  void admit(Pending& s) {
    const int peer = s.side == Side::opens ? s.hello.to : s.hello.from;
    auto& channel = channels_[static_cast<std::size_t>(peer)][s.hello.connection];
    if (!channel) --missing_;
    channel = std::move(s.channel);
    s.channel.close();
    reached_[static_cast<std::size_t>(peer)] = true;
  }

  /// The first bytes of a connection always fit into the kernel's buffer.
  static bool send(const Pending& s, const void* data, std::size_t bytes) {
    return ::send(s.channel.descriptor(), data, bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes);
  }

  Error late() const {
    std::string text;
    int first = -1;
    bool reached = true;
    const auto& own = peers_[static_cast<std::size_t>(rank_)];
    for (std::size_t r = 0; r < channels_.size(); ++r) {
      if (std::ranges::all_of(channels_[r], [](const auto& channel) { return bool(channel); }))
        continue;
      const int peer = static_cast<int>(r);
      if (first < 0) first = rendezvous_.names()(peer);
      text += fmt::format("{}rank {}", text.empty() ? "" : ", ", rendezvous_.names()(peer));
      if (peer < rank_)
        text += fmt::format(" at {} port {}: {}", peers_[r].address, peers_[r].port,
                            reasons_[r].empty() ? "no answer" : reasons_[r]);
      else
        text += fmt::format(", which connects to {} port {}", own.address, own.port);
      reached = reached && reached_[r];
    }
    if (!reached)
      text +=
          "; let TCP connections to these ports pass between the hosts (firewall), or set "
          "TUTTI_PORTS to a range that is open, or name another interface by TUTTI_IFNAME";
    return {Errc::timeout,
            fmt::format("group '{}': rank {} has no connection to {}", rendezvous_.names().group(),
                        rendezvous_.names()(rank_), text),
            {.group = rendezvous_.names().group(), .rank = first}};
  }

  struct Again {
    Clock::time_point at;
    int peer;
    std::size_t connection;
  };

  internal::Rendezvous& rendezvous_;
  const Listener& listener_;
  int rank_;
  const std::vector<PeerAddress>& peers_;
  const crypto::Digest& secret_;
  bool encrypts_;
  const Logger& logger_;
  internal::WaitWarnings warnings_;
  std::vector<std::vector<Channel>> channels_;
  std::vector<std::string> reasons_;  // By rank: why the last attempt failed.
  std::vector<bool> reached_;         // By rank: a TCP connection with it was made.
  std::size_t missing_ = 0;
  PendingList pending_;
  std::vector<Again> again_;
};

}  // namespace

Listener::Listener(const std::string& address) {
  const int error = internal::listen_at_any_port("tcp", [&](int port) {
    const Address at(address, port);
    socket_ = make_socket(at.family());
    if (!socket_) no_socket();
    // The connections of other groups have this port too.
    const int yes = 1;
    if (port != 0) ::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    const bool listens =
        ::bind(socket_.get(), at.get(), at.length()) == 0 && ::listen(socket_.get(), 4096) == 0;
    return listens ? 0 : errno;
  });
  if (error != 0)
    internal::failf(Errc::backend, "tcp: cannot listen at {}: {}", address, std::strerror(error));
}

int Listener::port() const {
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  ::getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&own), &length);
  return ntohs(own.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(own).sin6_port
                                         : reinterpret_cast<const sockaddr_in&>(own).sin_port);
}

std::vector<std::vector<Channel>> connect_all(internal::Rendezvous& rendezvous,
                                              const Listener& listener, int rank,
                                              const std::vector<PeerAddress>& peers,
                                              const crypto::Digest& secret, bool encrypts,
                                              const Logger& logger) {
  return Connector(rendezvous, listener, rank, peers, secret, encrypts, logger).run();
}

}  // namespace tutti::backend::tcp
