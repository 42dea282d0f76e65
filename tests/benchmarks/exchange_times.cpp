// The parts of the time of a small call over gloo: two processes exchange 16 bytes over loopback,
// directly, by a thread that receives, and by such threads and the announcements of Gloo's messages
// (transport/tcp/pair.cc). Prints medians. exchange_times [CALLS]; docs/gloo.md has the figures.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace {

enum class Kind : std::uint32_t { data, receive_is_posted, send_is_posted };
struct Packet {
  Kind kind{};
  std::uint32_t call = 0;
  std::uint64_t value = 0;
};

enum class Way : std::uint8_t { direct, by_a_thread, announced };
constexpr const char* names[] = {"direct", "by a thread that receives",
                                 "the same, with announcements"};

/// One end of the connection, on which it and its peer make the same calls.
class End {
 public:
  End(int socket, Way way) : socket_(socket), way_(way) {
    if (way != Way::direct) thread_ = std::thread([this] { receive_all(); });
  }
  ~End() {
    ::shutdown(socket_, SHUT_WR);
    Packet last;
    if (way_ == Way::direct) (void)receive(last, 0);
    if (thread_.joinable()) thread_.join();  // When the peer has ended, too.
    ::close(socket_);
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  void exchange(std::uint32_t call) {
    const Packet mine{Kind::data, call, call};
    Packet theirs;
    if (way_ == Way::direct) {
      send(mine);
      if (!receive(theirs, 0)) throw std::runtime_error("the peer has ended");
    } else {
      std::unique_lock lock(mutex_);
      if (way_ == Way::announced) {
        send({Kind::receive_is_posted, call, 0});
        send({Kind::send_is_posted, call, 0});
      }
      if (way_ == Way::by_a_thread || peer_receives_ == call)
        send(mine);
      else
        waiting_ = mine;
      const auto& place = received_[call % 2];
      arrived_.wait(lock, [&] { return place.call == call && !waiting_; });
      theirs = place;
    }
    if (theirs.value != call) throw std::runtime_error("wrong data");
  }

 private:
  void send(const Packet& packet) const {
    if (::send(socket_, &packet, sizeof packet, MSG_NOSIGNAL) != sizeof packet)
      throw std::runtime_error("cannot send");
  }
  bool receive(Packet& packet, int flags) const {
    return ::recv(socket_, &packet, sizeof packet, flags) == sizeof packet;
  }

  /// As Gloo's I/O thread: it waits by epoll, has the policy SCHED_BATCH, and sends data for which
  /// the peer has posted its receive.
  void receive_all() {
    const sched_param none{};
    (void)::sched_setscheduler(0, SCHED_BATCH, &none);
    const int events = ::epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{.events = EPOLLIN, .data = {.fd = socket_}};
    (void)::epoll_ctl(events, EPOLL_CTL_ADD, socket_, &event);
    for (bool open = true; open;) {
      if (::epoll_wait(events, &event, 1, 10) <= 0) continue;
      Packet packet;
      while (receive(packet, MSG_DONTWAIT)) take(packet);
      char byte = 0;
      open = ::recv(socket_, &byte, 1, MSG_DONTWAIT | MSG_PEEK) != 0;
    }
    ::close(events);
  }
  void take(const Packet& packet) {
    const std::lock_guard lock(mutex_);
    if (packet.kind == Kind::send_is_posted) return;
    if (packet.kind == Kind::receive_is_posted) {
      peer_receives_ = packet.call;
      if (waiting_) send(*std::exchange(waiting_, std::nullopt));
    } else {
      received_[packet.call % 2] = packet;
    }
    arrived_.notify_one();
  }

  const int socket_;
  const Way way_;
  std::mutex mutex_{};
  std::condition_variable arrived_{};
  Packet received_[2]{};             // By call: the peer may be one ahead.
  std::optional<Packet> waiting_{};  // Is sent when the peer has posted its receive.
  std::uint32_t peer_receives_ = 0;
  std::thread thread_{};
};

double median_us(int socket, Way way, std::uint32_t calls) {
  using Clock = std::chrono::steady_clock;
  End end(socket, way);
  std::vector<double> us;
  const std::uint32_t warm_up = calls / 8;
  for (std::uint32_t call = 1; call <= warm_up + calls; ++call) {
    const auto start = Clock::now();
    end.exchange(call);
    if (call > warm_up)
      us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  std::ranges::nth_element(us, us.begin() + static_cast<std::ptrdiff_t>(us.size() / 2));
  return us[us.size() / 2];
}

void prepare(int socket) {
  const int yes = 1;
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
}

/// Forks the peer. The median of this process.
double measure(Way way, std::uint32_t calls) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener, generic, size) != 0 || ::listen(listener, 1) != 0 ||
      ::getsockname(listener, generic, &size) != 0)
    throw std::runtime_error("cannot listen on loopback");
  const pid_t peer = ::fork();
  if (peer == 0) {
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (::connect(socket, generic, size) != 0) ::_exit(1);
    prepare(socket);
    (void)median_us(socket, way, calls);
    ::_exit(0);
  }
  const int socket = ::accept(listener, nullptr, nullptr);
  ::close(listener);
  prepare(socket);
  const double us = median_us(socket, way, calls);
  int status = 0;
  if (::waitpid(peer, &status, 0) != peer || status != 0)
    throw std::runtime_error("the peer has failed");
  return us;
}

}  // namespace

int main(int argc, char** argv) {
  const auto calls = static_cast<std::uint32_t>(argc > 1 ? std::atoi(argv[1]) : 8000);
  std::vector<double> us[std::size(names)];
  for (int round = 0; round < 9; ++round)
    for (std::size_t i = 0; i < std::size(names); ++i)
      us[i].push_back(measure(static_cast<Way>(i), calls));
  for (std::size_t i = 0; i < std::size(names); ++i) {
    std::ranges::sort(us[i]);
    fmt::print("{:<30} {:6.1f} µs  ({:.1f} to {:.1f})\n", names[i], us[i][us[i].size() / 2],
               us[i].front(), us[i].back());
  }
}
