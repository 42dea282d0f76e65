#include <tutti/store/token.hpp>

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <vector>

#include <fmt/format.h>

#include <tutti/deadline.hpp>

#include "store/crypto.hpp"
#include "values/fail.hpp"

namespace [[gnu::visibility("default")]] tutti {

namespace {

namespace crypto = internal::crypto;

constexpr std::size_t min_token_bytes = 32;
constexpr std::size_t max_token_bytes = 4096;
constexpr std::chrono::seconds pipe_timeout{10};

void require_openssl() {
  if (!crypto::available)
    fail(Errc::unsupported,
         "this tutti was built without OpenSSL, so it has no tokens; build it with "
         "-Dopenssl=enabled (package libssl-dev)");
}

/// The bytes of a token on the stack, erased at the end.
struct TokenBytes {
  std::array<char, max_token_bytes + 2> bytes{};  // Room for more than is allowed.
  std::size_t size = 0;
  TokenBytes() = default;
  TokenBytes(const TokenBytes&) = delete;
  TokenBytes& operator=(const TokenBytes&) = delete;
  ~TokenBytes() { crypto::erase(std::as_writable_bytes(std::span(bytes))); }
};

[[noreturn]] void refuse_token_file(const std::string& file, std::string_view why) {
  internal::failf(Errc::invalid_argument, "token file '{}': {}", file, why);
}

/// In a user namespace, the group of files whose group it does not know.
gid_t unknown_group() {
  gid_t group = 65534;
  std::ifstream("/proc/sys/kernel/overflowgid") >> group;
  return group;
}

bool has_group(gid_t group) {
  if (group == unknown_group()) return false;
  std::vector<gid_t> groups(static_cast<std::size_t>(std::max(::getgroups(0, nullptr), 0)));
  const int n = ::getgroups(static_cast<int>(groups.size()), groups.data());
  groups.resize(static_cast<std::size_t>(std::max(n, 0)));
  return group == ::getegid() || std::ranges::find(groups, group) != groups.end();
}

void check_permissions(const std::string& file, const struct stat& status) {
  if (!S_ISREG(status.st_mode) && !S_ISFIFO(status.st_mode))
    refuse_token_file(file, "it is neither a regular file nor a pipe");
  if (status.st_uid != ::geteuid() && status.st_uid != 0)
    refuse_token_file(file,
                      fmt::format("it belongs to user {}, this process to user {}; the file must "
                                  "be this user's or root's",
                                  status.st_uid, ::geteuid()));
  const auto mode = static_cast<unsigned>(status.st_mode) & 07777U;
  // A Secret of Kubernetes belongs to root and to a group of the pod's processes (fsGroup).
  const bool of_group = status.st_uid == 0 && (mode & 037U) == 0 && has_group(status.st_gid);
  if ((mode & 077U) != 0 && !of_group)
    refuse_token_file(
        file,
        fmt::format("its mode is {:04o}, its owner user {} and its group {}; group and others "
                    "must have no permission (chmod 600, or use a copy: install -m 600 {} "
                    "COPY), except that a group of this process may read a file of root (in "
                    "Kubernetes defaultMode: 0440 with fsGroup)",
                    mode, status.st_uid, status.st_gid, file));
}

/// Waits for bytes of a pipe, or for the end of its writers.
void await_bytes(const std::string& file, int descriptor, Deadline limit) {
  pollfd event{descriptor, POLLIN, 0};
  while (::poll(&event, 1, static_cast<int>(limit.remaining() / std::chrono::milliseconds(1))) <= 0)
    if (limit.expired())
      refuse_token_file(
          file, fmt::format("it is a pipe that did not end within {} s", pipe_timeout.count()));
}

StoreToken read_token(const std::string& file, int descriptor, bool is_pipe) {
  const auto limit = Deadline::after(pipe_timeout);
  TokenBytes text;
  while (text.size < text.bytes.size()) {
    if (is_pipe) await_bytes(file, descriptor, limit);
    auto* const to = text.bytes.data() + text.size;
    const auto room = text.bytes.size() - text.size;
    // Not read() of a file: processes may share the offset of a file that is open elsewhere.
    const auto n = is_pipe ? ::read(descriptor, to, room)
                           : ::pread(descriptor, to, room, static_cast<off_t>(text.size));
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n < 0) refuse_token_file(file, std::strerror(errno));
    if (n == 0) break;
    text.size += static_cast<std::size_t>(n);
  }
  if (is_pipe && text.size == 0)
    refuse_token_file(file,
                      "it is a pipe without bytes; a pipe gives the token to one process: each "
                      "process needs its own pipe, or all a file (tutti run passes the token on)");
  while (text.size > 0 && std::strchr(" \t\r\n", text.bytes[text.size - 1]) != nullptr) --text.size;
  if (text.size < min_token_bytes || text.size > max_token_bytes)
    refuse_token_file(file,
                      fmt::format("it has {}{} bytes; a token has {} to {} (openssl rand -hex 32)",
                                  text.size > max_token_bytes ? "at least " : "", text.size,
                                  min_token_bytes, max_token_bytes));
  return StoreToken::from_text({text.bytes.data(), text.size});
}

/// The token that this process has read from a pipe. A pipe gives its bytes once.
struct TokenOfPipe {
  ino_t pipe = 0;
  StoreToken token{};
};

}  // namespace

class StoreToken::Secret {
 public:
  explicit Secret(std::string_view text) : text_(text.begin(), text.end()) {}
  ~Secret() { crypto::erase(std::as_writable_bytes(std::span(text_))); }
  Secret(const Secret&) = delete;
  Secret& operator=(const Secret&) = delete;
  std::string_view text() const noexcept { return {text_.data(), text_.size()}; }

 private:
  std::vector<char> text_;  // Of one allocation: a string may hold a copy.
};

StoreToken StoreToken::random() {
  require_openssl();
  crypto::Digest bytes;
  crypto::random(bytes);
  TokenBytes text;
  for (const auto byte : bytes) {
    const auto number = std::to_integer<unsigned>(byte);
    for (const auto digit : {number >> 4, number & 15U})
      text.bytes[text.size++] = "0123456789abcdef"[digit];
  }
  crypto::erase(bytes);
  return from_text({text.bytes.data(), text.size});
}

StoreToken StoreToken::from_text(std::string_view text) {
  require_openssl();
  if (text.size() < min_token_bytes || text.size() > max_token_bytes)
    internal::failf(Errc::invalid_argument, "the token has {} bytes; it must have {} to {}",
                    text.size(), min_token_bytes, max_token_bytes);
  StoreToken token;
  token.secret_ = std::make_shared<const Secret>(text);
  return token;
}

StoreToken StoreToken::read(const std::string& file) {
  require_openssl();
  const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0 && errno == EACCES)
    refuse_token_file(file, fmt::format("{} for user {}; a Secret of Kubernetes needs defaultMode: "
                                        "0440 with fsGroup",
                                        std::strerror(errno), ::geteuid()));
  if (descriptor < 0 && file.starts_with("/proc/"))
    refuse_token_file(file, fmt::format("{}; a process in a container sees no file of a process "
                                        "outside: set TUTTI_TOKEN_FILE to a file that it has",
                                        std::strerror(errno)));
  if (descriptor < 0) refuse_token_file(file, std::strerror(errno));
  struct Close {
    int descriptor;
    ~Close() { ::close(descriptor); }
  } const close{descriptor};
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) refuse_token_file(file, std::strerror(errno));
  check_permissions(file, status);
  if (!S_ISFIFO(status.st_mode)) return read_token(file, descriptor, false);
  static std::mutex mutex;
  static std::map<std::string, TokenOfPipe> known;
  const std::lock_guard lock(mutex);
  auto& of_path = known[file];
  if (!of_path.token || of_path.pipe != status.st_ino)
    of_path = {status.st_ino, read_token(file, descriptor, true)};
  return of_path.token;
}

std::string StoreToken::file_of_environment() {
  if (const char* text = std::getenv("TUTTI_TOKEN"); text != nullptr && *text != '\0')
    fail(
        Errc::invalid_argument,
        "TUTTI_TOKEN is set: all programs of this user can read it in /proc, and every child "
        "inherits it; unset it, and set TUTTI_TOKEN_FILE to a file (chmod 600) or, of one process, "
        "to a pipe: TUTTI_TOKEN_FILE=<(printf %s \"$TOKEN\") in bash");
  const char* const file = std::getenv("TUTTI_TOKEN_FILE");
  return file == nullptr ? "" : file;
}

bool StoreToken::available() noexcept {
  return crypto::available;
}

std::string_view StoreToken::text() const noexcept {
  return secret_ == nullptr ? std::string_view() : secret_->text();
}

}  // namespace tutti
