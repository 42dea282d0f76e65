#include <tutti/store/token.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "store/crypto.hpp"
#include "values/fail.hpp"

namespace [[gnu::visibility("default")]] tutti {

namespace {

namespace crypto = internal::crypto;

constexpr std::size_t min_token_bytes = 32;
constexpr std::size_t max_token_bytes = 4096;

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

void check_owner(const std::string& file, const struct stat& status) {
  if (!S_ISREG(status.st_mode)) refuse_token_file(file, "it is not a regular file");
  if (status.st_uid != ::geteuid() && status.st_uid != 0)
    refuse_token_file(file,
                      fmt::format("it belongs to user {}, this process to user {}; the file must "
                                  "be this user's or root's",
                                  status.st_uid, ::geteuid()));
  const auto mode = static_cast<unsigned>(status.st_mode) & 07777U;
  if ((mode & 077U) != 0)
    refuse_token_file(
        file,
        fmt::format("its mode is {:04o}; group and others must have no permission (chmod 600)",
                    mode));
}

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
  if (descriptor < 0) refuse_token_file(file, std::strerror(errno));
  struct Close {
    int descriptor;
    ~Close() { ::close(descriptor); }
  } const close{descriptor};
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) refuse_token_file(file, std::strerror(errno));
  check_owner(file, status);
  TokenBytes text;
  while (text.size < text.bytes.size()) {
    // Not read(): processes may share the offset of a file that is open elsewhere.
    const auto n = ::pread(descriptor, text.bytes.data() + text.size, text.bytes.size() - text.size,
                           static_cast<off_t>(text.size));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) refuse_token_file(file, std::strerror(errno));
    if (n == 0) break;
    text.size += static_cast<std::size_t>(n);
  }
  while (text.size > 0 && std::strchr(" \t\r\n", text.bytes[text.size - 1]) != nullptr) --text.size;
  if (text.size < min_token_bytes || text.size > max_token_bytes)
    refuse_token_file(file,
                      fmt::format("it has {}{} bytes; a token has {} to {} (openssl rand -hex 32)",
                                  text.size > max_token_bytes ? "at least " : "", text.size,
                                  min_token_bytes, max_token_bytes));
  return from_text({text.bytes.data(), text.size});
}

bool StoreToken::available() noexcept {
  return crypto::available;
}

std::string_view StoreToken::text() const noexcept {
  return secret_ == nullptr ? std::string_view() : secret_->text();
}

}  // namespace tutti
