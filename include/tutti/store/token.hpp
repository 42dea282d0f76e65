#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <tutti/store/store.hpp>

namespace [[gnu::visibility("default")]] tutti {

/// The secret of a job: a StoreServer that has one admits only clients that prove that they have
/// the same one, and proves it to them. The handshake never sends the secret itself; without a
/// token file, ranks of several hosts exchange one through the launcher's key-value space. A text
/// of 32 to 4096 bytes. A value type; copies share the text, which is erased from memory with the
/// last of them. docs/security.md has the handshake.
class StoreToken {
 public:
  StoreToken() = default;  ///< No token.
  /// 32 random bytes, as 64 hexadecimal digits. @throws Error unsupported without OpenSSL.
  static StoreToken random();
  /// @throws Error invalid_argument for another length, unsupported without OpenSSL.
  static StoreToken from_text(std::string_view text);
  /// Reads a file or a pipe, without white space at its end. Only its owner, who is this user or
  /// root, may have permissions; a group of this process may read a file of root. The process keeps
  /// the token of a pipe, by path. @throws Error invalid_argument, unsupported without OpenSSL.
  static StoreToken read(const std::string& file);
  /// TUTTI_TOKEN_FILE; empty if it is not set. @throws Error invalid_argument if TUTTI_TOKEN is.
  static std::string file_of_environment();
  /// False if tutti was built without OpenSSL: every token is then Error unsupported.
  static bool available() noexcept;

  explicit operator bool() const noexcept { return secret_ != nullptr; }
  /// Do not log it.
  std::string_view text() const noexcept;

 private:
  class Secret;
  std::shared_ptr<const Secret> secret_{};
};

/// The claims of a client of an authenticated store. The handshake binds them to the token: the
/// server refuses a client of another job, generation or size, and a rank outside of its size.
struct StoreIdentity {
  StoreToken token{};            ///< Without a token, the client claims nothing.
  std::string job{};             ///< Jobs that share a token have different names.
  std::uint32_t generation = 0;  ///< The number of restarts of the job.
  int rank = -1;                 ///< -1: not a rank, such as a launcher or a monitor.
  int size = 0;                  ///< The number of ranks; 0 if rank is -1.
};

/// make_tcp_store() for a server with a token. @throws Error mismatch if the server has another
/// token, job, generation or size; invalid_argument if it has none.
std::shared_ptr<Store> make_tcp_store(const std::string& host, int port,
                                      std::chrono::nanoseconds timeout,
                                      const StoreIdentity& identity);

/// open_store() with an identity, which only "tcp://" uses.
std::shared_ptr<Store> open_store(std::string_view address, std::chrono::nanoseconds timeout,
                                  const StoreIdentity& identity);

}  // namespace tutti
