#include "channel.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef HAS_OPENSSL
#include <openssl/err.h>
#include <openssl/ssl.h>
#endif

#include "values/fail.hpp"

namespace tutti::backend::tcp {
namespace {

/// Up to here a message is copied to be sent: one array costs less than two.
constexpr std::size_t copied = 2048;

std::size_t bytes_of(std::span<const iovec> arrays) {
  std::size_t bytes = 0;
  for (const auto& array : arrays) bytes += array.iov_len;
  return bytes;
}

/// Copies the arrays, as far as they fit.
std::size_t gather(std::span<const iovec> arrays, std::span<std::byte> to) {
  std::size_t at = 0;
  for (const auto& array : arrays) {
    const auto take = std::min(array.iov_len, to.size() - at);
    if (take > 0) std::memcpy(to.data() + at, array.iov_base, take);
    at += take;
  }
  return at;
}

}  // namespace

#ifdef HAS_OPENSSL

namespace {

using internal::crypto::Digest;
using internal::crypto::require;

/// The cipher TLS_AES_128_GCM_SHA256.
constexpr std::array<unsigned char, 2> cipher{0x13, 0x01};
/// Of the key, and of its sessions.
constexpr std::array<unsigned char, 5> identity{'t', 'u', 't', 't', 'i'};
/// Bytes that are sent with one key; RFC 8446 section 5.5 allows 2^24.5 records of 16 KiB.
constexpr std::uint64_t most_bytes_of_a_key = std::uint64_t{1} << 26;

/// The socket below OpenSSL. SSL_read() fails while a change of keys has not been written, so the
/// bytes of that change are kept if the socket is full: two ranks would otherwise wait for each
/// other.
struct Wire {
  int socket;
  bool keeps = false;  // What does not fit.
  std::array<char, 64> kept{};
  std::size_t kept_bytes = 0;

  ssize_t send(const char* data, std::size_t bytes) const noexcept {
    return ::send(socket, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  bool send_kept() noexcept {
    const auto sent = send(kept.data(), kept_bytes);
    if (sent > 0) {
      kept_bytes -= static_cast<std::size_t>(sent);
      std::memmove(kept.data(), kept.data() + sent, kept_bytes);
    }
    return sent >= 0 && kept_bytes == 0;
  }
};

Wire& wire_of(BIO* bio) {
  return *static_cast<Wire*>(::BIO_get_data(bio));
}

int write_bytes(BIO* bio, const char* data, int count) {
  auto& wire = wire_of(bio);
  const auto bytes = static_cast<std::size_t>(count);
  BIO_clear_retry_flags(bio);
  ssize_t sent = -1;
  if (wire.kept_bytes == 0 || wire.send_kept()) sent = wire.send(data, bytes);
  const auto gone = sent < 0 ? 0 : static_cast<std::size_t>(sent);
  if (wire.keeps && gone < bytes && bytes - gone + wire.kept_bytes <= wire.kept.size()) {
    std::memcpy(wire.kept.data() + wire.kept_bytes, data + gone, bytes - gone);
    wire.kept_bytes += bytes - gone;
    return count;
  }
  if (sent < 0 && errno == EAGAIN) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

int read_bytes(BIO* bio, char* data, int bytes) {
  BIO_clear_retry_flags(bio);
  const auto got = ::recv(wire_of(bio).socket, data, static_cast<std::size_t>(bytes), MSG_DONTWAIT);
  if (got < 0 && errno == EAGAIN) BIO_set_retry_read(bio);
  return static_cast<int>(got);
}

long control(BIO*, int command, long, void*) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

/// Sockets without SIGPIPE, which those of OpenSSL raise.
const BIO_METHOD* sockets() {
  static const auto* const method = [] {
    auto* const made = ::BIO_meth_new(::BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "tutti");
    require(made != nullptr && ::BIO_meth_set_write(made, write_bytes) == 1 &&
                ::BIO_meth_set_read(made, read_bytes) == 1 &&
                ::BIO_meth_set_ctrl(made, control) == 1,
            "BIO_meth_new");
    return made;
  }();
  return method;
}

/// The session that stands for a pre-shared key. Null if OpenSSL has no memory.
SSL_SESSION* session_of(SSL* ssl) {
  const auto* const key = static_cast<const Digest*>(SSL_get_app_data(ssl));
  auto* const session = ::SSL_SESSION_new();
  if (session == nullptr) return nullptr;
  const auto* const name = ::SSL_CIPHER_find(ssl, cipher.data());
  if (name != nullptr && ::SSL_SESSION_set_cipher(session, name) == 1 &&
      ::SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1 &&
      ::SSL_SESSION_set1_id_context(session, identity.data(), identity.size()) == 1 &&
      ::SSL_SESSION_set1_master_key(session, internal::crypto::in(*key), key->size()) == 1)
    return session;
  ::SSL_SESSION_free(session);
  return nullptr;
}

int use_key(SSL* ssl, const EVP_MD*, const unsigned char** id, std::size_t* bytes,
            SSL_SESSION** session) {
  *session = session_of(ssl);
  *id = identity.data();
  *bytes = identity.size();
  return *session == nullptr ? 0 : 1;
}

int find_key(SSL* ssl, const unsigned char* id, std::size_t bytes, SSL_SESSION** session) {
  *session = std::ranges::equal(std::span(id, bytes), identity) ? session_of(ssl) : nullptr;
  return 1;
}

struct Free {
  void operator()(SSL* ssl) const noexcept { ::SSL_free(ssl); }
};

SSL_CTX* make_context() {
  internal::crypto::require_context();
  auto* const context = ::SSL_CTX_new(::TLS_method());
  require(context != nullptr && SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
              ::SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") == 1 &&
              ::SSL_CTX_set_num_tickets(context, 0) == 1 &&
              ::SSL_CTX_set_session_id_context(context, identity.data(), identity.size()) == 1,
          "SSL_CTX_new");
  // No certificate takes the place of the key.
  ::SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  ::SSL_CTX_set_psk_use_session_callback(context, use_key);
  ::SSL_CTX_set_psk_find_session_callback(context, find_key);
  SSL_CTX_set_read_ahead(context, 1);
  return context;
}

}  // namespace

class Channel::Tls {
 public:
  Tls(int socket, Side side, const Digest& key) : wire_{.socket = socket}, key_(key) {
    static auto* const context = make_context();
    ssl_.reset(::SSL_new(context));
    BIO* const bio = ssl_ == nullptr ? nullptr : ::BIO_new(sockets());
    require(bio != nullptr, "SSL_new");
    ::BIO_set_data(bio, &wire_);
    ::BIO_set_init(bio, 1);
    ::SSL_set_bio(ssl_.get(), bio, bio);
    SSL_set_app_data(ssl_.get(), &key_);
    side == Side::client ? ::SSL_set_connect_state(ssl_.get()) : ::SSL_set_accept_state(ssl_.get());
  }
  ~Tls() { internal::crypto::erase(key_); }
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;

  Handshake shake_hands() noexcept {
    ::ERR_clear_error();
    const int done = ::SSL_do_handshake(ssl_.get());
    if (done == 1) {
      internal::crypto::erase(key_);
      return Handshake::done;
    }
    switch (::SSL_get_error(ssl_.get(), done)) {
      case SSL_ERROR_WANT_READ:
        return Handshake::waits_to_receive;
      case SSL_ERROR_WANT_WRITE:
        return Handshake::waits_to_send;
      default:
        return Handshake::failed;
    }
  }

  ssize_t send(std::span<const iovec> arrays) noexcept {
    ::ERR_clear_error();
    if (waiting_ == 0) {
      if (sent_ >= most_bytes_of_a_key) change_key();
      waiting_ = gather(arrays, record_);
    }
    if (waiting_ == 0) return 0;
    const int done = ::SSL_write(ssl_.get(), record_.data(), static_cast<int>(waiting_));
    if (done <= 0) return failed(done);
    sent_ += waiting_;
    return static_cast<ssize_t>(std::exchange(waiting_, 0));
  }

  ssize_t receive(std::span<const iovec> arrays) noexcept {
    const auto to = std::ranges::find_if(arrays, [](const iovec& a) { return a.iov_len > 0; });
    if (to == arrays.end()) return 0;
    ::ERR_clear_error();
    constexpr std::size_t most = 1U << 30U;
    const int got =
        ::SSL_read(ssl_.get(), to->iov_base, static_cast<int>(std::min(to->iov_len, most)));
    return got > 0 ? got : failed(got);
  }

 private:
  void change_key() noexcept {
    wire_.keeps = true;
    if (::SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) == 1 &&
        ::SSL_do_handshake(ssl_.get()) == 1)
      sent_ = 0;
    wire_.keeps = false;
  }
  /// Sets errno.
  ssize_t failed(int result) noexcept {
    const int system = errno;
    switch (::SSL_get_error(ssl_.get(), result)) {
      case SSL_ERROR_WANT_READ:
      case SSL_ERROR_WANT_WRITE:
        errno = EAGAIN;
        break;
      case SSL_ERROR_SYSCALL:
        errno = system != 0 ? system : ECONNRESET;
        break;
      default:
        switch (ERR_GET_REASON(::ERR_peek_error())) {
          case SSL_R_UNEXPECTED_EOF_WHILE_READING:
            errno = ECONNRESET;
            break;
          case ERR_R_MALLOC_FAILURE:
            errno = ENOMEM;
            break;
          default:
            errno = EPROTO;
        }
    }
    return -1;
  }

  Wire wire_;
  std::unique_ptr<SSL, Free> ssl_{};
  Digest key_;
  std::uint64_t sent_ = 0;   // With the present key.
  std::size_t waiting_ = 0;  // Bytes of record_ that are being sent.
  std::array<std::byte, SSL3_RT_MAX_PLAIN_LENGTH> record_{};
};

#else

/// Never made.
class Channel::Tls {
 public:
  Tls(int, Side, const internal::crypto::Digest&) { internal::crypto::refuse(); }
  Handshake shake_hands() noexcept { return Handshake::failed; }
  ssize_t send(std::span<const iovec>) noexcept { return -1; }
  ssize_t receive(std::span<const iovec>) noexcept { return -1; }
};

#endif

Channel::Channel() noexcept = default;
Channel::Channel(mesh::Socket socket) noexcept : socket_(std::move(socket)) {}
Channel::~Channel() = default;
Channel::Channel(Channel&&) noexcept = default;
Channel& Channel::operator=(Channel&&) noexcept = default;

void Channel::encrypt(Side side, const internal::crypto::Digest& key) {
  tls_ = std::make_unique<Tls>(socket_.get(), side, key);
}

Channel::Handshake Channel::shake_hands() noexcept {
  return tls_->shake_hands();
}

ssize_t Channel::send(std::span<const iovec> arrays) noexcept {
  if (tls_ != nullptr) return tls_->send(arrays);
  if (arrays.size() > 1 && bytes_of(arrays) <= copied) {
    std::array<std::byte, copied> copy;  // NOLINT(*-member-init)
    return ::send(socket_.get(), copy.data(), gather(arrays, copy), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(arrays.data());
  message.msg_iovlen = arrays.size();
  return ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ssize_t Channel::receive(std::span<const iovec> arrays) noexcept {
  if (tls_ != nullptr) return tls_->receive(arrays);
  if (arrays.size() == 1)
    return ::recv(socket_.get(), arrays[0].iov_base, arrays[0].iov_len, MSG_DONTWAIT);
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(arrays.data());
  message.msg_iovlen = arrays.size();
  return ::recvmsg(socket_.get(), &message, MSG_DONTWAIT);
}

}  // namespace tutti::backend::tcp
