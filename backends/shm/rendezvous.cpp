#include "rendezvous.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <span>
#include <string>

#include <fmt/format.h>

#include "group/agreement.hpp"
#include "host.hpp"
#include "layout.hpp"
#include "values/bytes.hpp"
#include "values/current_error.hpp"
#include "values/fail.hpp"
#include "values/host_identity.hpp"

namespace tutti::backend::shm {
namespace {

using namespace std::chrono_literals;

/// The data that a rank publishes in the store for its peers.
struct PeerInfo {
  std::uint32_t version = Layout::version;
  internal::HostIdentity host;
  std::int32_t process = 0;
  Cores cores;
  std::string address{};  ///< Rank 0: its socket's.
  std::string error{};    ///< Rank 0: why there is no shared memory.
};

Bytes encode(const PeerInfo& info) {
  internal::Writer out;
  out.u32(info.version);
  out.text(info.host.boot).text(info.host.network).text(info.host.processes).text(info.host.users);
  out.text(info.host.user).i32(info.process).u64(info.cores.quota);
  const std::vector<std::int64_t> list(info.cores.list.begin(), info.cores.list.end());
  out.list(list).text(info.address).text(info.error);
  return out.take();
}

PeerInfo decode(const Bytes& bytes, int rank) {
  const auto what = fmt::format("shm: the description of rank {} in the store", rank);
  internal::Reader in(bytes, Errc::backend, what);
  PeerInfo info;
  info.version = in.u32();
  if (info.version != Layout::version)
    internal::failf(Errc::mismatch,
                    "shm: rank {} has version {} of the shared memory's layout, this rank has {}; "
                    "run the same version of tutti on every rank",
                    rank, info.version, Layout::version);
  info.host = {std::string(in.text()), std::string(in.text()), std::string(in.text()),
               std::string(in.text()), std::string(in.text())};
  info.process = in.i32();
  info.cores.quota = in.u64();
  for (const auto core : in.list()) info.cores.list.push_back(static_cast<int>(core));
  info.address = in.text();
  info.error = in.text();
  in.end();
  return info;
}

[[noreturn]] void fail_socket(const char* what) {
  internal::failf(errno == EMFILE || errno == ENFILE ? Errc::resource_exhausted : Errc::backend,
                  "shm: cannot {}: {}", what, std::strerror(errno));
}

Descriptor make_socket() {
  Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.is_open()) fail_socket("make a unix socket");
  return socket;
}

/// Listens at an address that the kernel chooses. The address is in no file system, and ends with
/// the process.
Descriptor listen_anywhere(int size, std::string& address) {
  auto socket = make_socket();
  sockaddr_un own{};
  own.sun_family = AF_UNIX;
  socklen_t length = sizeof own;
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&own), sizeof own.sun_family) != 0 ||
      ::listen(socket.get(), size) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0)
    fail_socket("listen on a unix socket");
  const auto path = static_cast<std::size_t>(length) - offsetof(sockaddr_un, sun_path);
  address.assign(own.sun_path, path);
  return socket;
}

/// True if the kernel says that the peer is this process of this user.
bool is_process(const Descriptor& socket, const PeerInfo& info) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
         peer.pid == info.process && std::to_string(peer.uid) == info.host.user;
}

void limit_waits(const Descriptor& socket) {
  const timeval time{.tv_sec = 1, .tv_usec = 0};
  for (const int option : {SO_RCVTIMEO, SO_SNDTIMEO})
    ::setsockopt(socket.get(), SOL_SOCKET, option, &time, sizeof time);
}

/// A message of one byte, with room for a descriptor.
struct FileMessage {
  FileMessage() noexcept {
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
  }
  FileMessage(const FileMessage&) = delete;
  FileMessage& operator=(const FileMessage&) = delete;

  std::byte token{};
  iovec data{&token, 1};
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
};

bool send_file(const Descriptor& socket, const Descriptor& file) {
  FileMessage sent;
  auto* header = CMSG_FIRSTHDR(&sent.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int number = file.get();
  std::memcpy(CMSG_DATA(header), &number, sizeof number);
  return ::sendmsg(socket.get(), &sent.message, MSG_NOSIGNAL) == 1;
}

Descriptor receive_file(const Descriptor& socket) {
  FileMessage received;
  if (::recvmsg(socket.get(), &received.message, MSG_CMSG_CLOEXEC) != 1) return {};
  const auto* header = CMSG_FIRSTHDR(&received.message);
  if (header == nullptr || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS ||
      header->cmsg_len != CMSG_LEN(sizeof(int)))
    return {};
  int number = -1;
  std::memcpy(&number, CMSG_DATA(header), sizeof number);
  return Descriptor(number);
}

class Rendezvous {
 public:
  Rendezvous(const BackendInit& init, std::size_t bytes, Deadline limit)
      : init_(init), bytes_(bytes), limit_(limit) {
    // Every W arrivals form one group, so a name may be reused once the earlier group is complete.
    const auto arrival = init.size == 1 ? 1 : init.store->add("shm/arrivals", 1);
    made_.store = make_prefix_store(init.store, fmt::format("shm/{}/", (arrival - 1) / init.size));
  }

  Membership run() {
    if (init_.rank == 0) make_segment();
    exchange_infos();
    check_hosts();
    if (!infos_[0].error.empty())
      throw Error(Errc::resource_exhausted, infos_[0].error, {.rank = 0});
    if (init_.rank == 0)
      pass_segment();
    else
      fetch_segment();
    // Opened while the peers wait for each other in join(), so the numbers are still theirs.
    made_.processes.resize(infos_.size());
    std::vector<Cores> cores;
    for (std::size_t r = 0; r < infos_.size(); ++r) {
      cores.push_back(infos_[r].cores);
      made_.ids.push_back(infos_[r].process);
      if (infos_[r].process == ::getpid()) continue;
      made_.processes[r] = process_descriptor(infos_[r].process);
      if (!made_.processes[r].is_open())
        throw Error(
            Errc::peer_lost,
            fmt::format("the process of rank {} cannot be watched: {}", r, std::strerror(errno)),
            {.rank = static_cast<int>(r)});
    }
    made_.cores = count_cores(cores);
    return std::move(made_);
  }

 private:
  void make_segment() {
    try {
      if (init_.size > 1) listener_ = listen_anywhere(init_.size, mine_.address);
      file_ = make_file(bytes_);
      made_.segment = Segment::map(file_, bytes_);
      new (made_.segment->data()) SharedGroup{};
      const Layout layout(init_.size);
      for (std::size_t r = 0; r < static_cast<std::size_t>(init_.size); ++r)
        new (made_.segment->data() + layout.rank(r)) SharedRank{};
    } catch (const Error& error) {
      mine_.error = error.message();
    }
  }

  static std::string key(int rank) { return fmt::format("rank/{}", rank); }

  void exchange_infos() {
    mine_.host = internal::host_identity();
    mine_.process = ::getpid();
    mine_.cores = usable_cores();
    made_.store->set(key(init_.rank), encode(mine_));
    for (int r = 0; r < init_.size; ++r) {
      try {
        infos_.push_back(decode(made_.store->get(key(r), limit_), r));
      } catch (const Error& error) {
        if (error.code() != Errc::timeout) throw;
        throw internal::rendezvous_error(*made_.store, "rank/", init_.name, init_.size);
      }
    }
  }

  void check_hosts() const {
    for (std::size_t r = 1; r < infos_.size(); ++r)
      if (const auto differs = internal::difference(infos_[0].host, infos_[r].host);
          !differs.empty())
        internal::failf(Errc::unsupported,
                        "group '{}': the backend shm needs all ranks on one host, but ranks 0 and "
                        "{} differ in {}; choose gloo",
                        init_.name, r, differs);
  }

  /// Serves the other ranks. Ignores connections of other processes.
  void pass_segment() {
    for (int served = 1; served < init_.size;) {
      pollfd event{listener_.get(), POLLIN, 0};
      const auto time = std::clamp<std::chrono::nanoseconds>(limit_.remaining(), 0ms, 1000ms);
      (void)::poll(&event, 1, static_cast<int>(time / 1ms));
      if (event.revents == 0) {
        if (!limit_.expired()) continue;
        internal::failf(Errc::timeout,
                        "group '{}': {} of {} ranks have fetched the shared memory before the "
                        "deadline",
                        init_.name, served, init_.size);
      }
      const Descriptor peer(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!peer.is_open()) {
        if (errno == EINTR || errno == ECONNABORTED) continue;
        fail_socket("accept a unix connection");
      }
      const bool known = std::any_of(infos_.begin() + 1, infos_.end(),
                                     [&](const PeerInfo& info) { return is_process(peer, info); });
      if (!known) continue;
      limit_waits(peer);
      // The peer confirms, so that a connection that broke is not counted.
      std::byte token{};
      if (send_file(peer, file_) && ::recv(peer.get(), &token, 1, 0) == 1) ++served;
    }
  }

  void fetch_segment() {
    const auto& address = infos_[0].address;
    sockaddr_un root{};
    root.sun_family = AF_UNIX;
    if (address.empty() || address.size() > sizeof root.sun_path)
      internal::failf(Errc::backend, "shm: rank 0 published a socket address of {} bytes",
                      address.size());
    std::memcpy(root.sun_path, address.data(), address.size());
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.size());
    do {
      const auto socket = make_socket();
      if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&root), length) != 0) {
        if (errno == EINTR || errno == EAGAIN) continue;
        throw Error(Errc::peer_lost,
                    fmt::format("cannot connect to rank 0: {}", std::strerror(errno)), {.rank = 0});
      }
      if (!is_process(socket, infos_[0]))
        internal::failf(Errc::backend, "shm: the process that listens for rank 0 is not rank 0");
      limit_waits(socket);
      const auto file = receive_file(socket);
      if (!file.is_open()) continue;
      made_.segment = Segment::map(file, bytes_);
      const std::byte token{};
      if (::send(socket.get(), &token, 1, MSG_NOSIGNAL) == 1) return;
    } while (!limit_.expired());
    throw Error(Errc::timeout,
                fmt::format("group '{}': rank 0 did not pass the shared memory before the deadline",
                            init_.name),
                {.rank = 0});
  }

  const BackendInit& init_;
  std::size_t bytes_;
  Deadline limit_;
  PeerInfo mine_;
  std::vector<PeerInfo> infos_;
  Descriptor listener_;
  Descriptor file_;
  Membership made_;
};

}  // namespace

Membership rendezvous(const BackendInit& init, std::size_t bytes, Deadline limit) {
  return Rendezvous(init, bytes, limit).run();
}

}  // namespace tutti::backend::shm
