#include "unix_socket.hpp"

#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "host.hpp"
#include "values/fail.hpp"

namespace tutti::backend::shm {
namespace {

[[noreturn]] void fail_socket(const char* what) {
  internal::failf(code_of_errno(errno), "shm: cannot {}: {}", what, std::strerror(errno));
}

Descriptor make_socket() {
  Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.is_open()) fail_socket("make a unix socket");
  return socket;
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

}  // namespace

std::string random_text() {
  std::array<unsigned char, 16> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != ssize_t{bytes.size()})
    fail_socket("make a random name");
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

Descriptor listen_anywhere(int backlog, std::string& address) {
  auto socket = make_socket();
  sockaddr_un own{};
  own.sun_family = AF_UNIX;
  // Behind a zero, which begins an abstract name.
  address = '\0' + random_text();
  std::memcpy(own.sun_path, address.data(), address.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.size());
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&own), length) != 0 ||
      ::listen(socket.get(), backlog) != 0)
    fail_socket("listen on a unix socket");
  return socket;
}

Descriptor accept_connection(const Descriptor& listener) {
  Descriptor peer(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!peer.is_open() && errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
    fail_socket("accept a unix connection");
  return peer;
}

std::optional<Descriptor> connect_to(std::string_view address) {
  sockaddr_un root{};
  root.sun_family = AF_UNIX;
  if (address.empty() || address.size() > sizeof root.sun_path)
    internal::failf(Errc::backend, "shm: a rank published a socket address of {} bytes",
                    address.size());
  std::memcpy(root.sun_path, address.data(), address.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.size());
  auto socket = make_socket();
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&root), length) == 0) return socket;
  if (errno == ECONNREFUSED) return std::nullopt;
  if (errno != EAGAIN && errno != EINTR) fail_socket("connect to a rank");
  return Descriptor();
}

bool is_process(const Descriptor& socket, int process, std::string_view user) {
  ucred peer{};
  socklen_t length = sizeof peer;
  return ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
         (process < 0 || peer.pid == process) && std::to_string(peer.uid) == user;
}

bool send_proof(const Descriptor& socket, std::string_view proof) {
  return ::send(socket.get(), proof.data(), proof.size(), MSG_NOSIGNAL) == std::ssize(proof);
}

bool receive_proof(const Descriptor& socket, std::string_view proof) {
  std::array<char, 64> bytes{};
  const auto n = ::recv(socket.get(), bytes.data(), bytes.size(), 0);
  return n > 0 && std::string_view(bytes.data(), static_cast<std::size_t>(n)) == proof;
}

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
  if (header == nullptr && (received.message.msg_flags & MSG_CTRUNC) != 0)
    internal::failf(Errc::resource_exhausted, "shm: cannot receive the shared memory: {}",
                    std::strerror(EMFILE));
  if (header == nullptr || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS ||
      header->cmsg_len != CMSG_LEN(sizeof(int)))
    return {};
  int number = -1;
  std::memcpy(&number, CMSG_DATA(header), sizeof number);
  return Descriptor(number);
}

}  // namespace tutti::backend::shm
