#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/deadline.hpp>

namespace [[gnu::visibility("default")]] tutti {

/// The value of a key.
using Bytes = std::vector<std::byte>;

/// A small key-value table that all ranks share, for rendezvous. Called from any thread. A key has
/// 1 to 1024 bytes, a value at most 8 MiB; otherwise Error invalid_argument.
class Store {
 public:
  static constexpr std::size_t max_key_bytes = 1024;  ///< With the prefix of make_prefix_store().
  static constexpr std::size_t max_value_bytes = std::size_t{8} << 20;  ///< 8 MiB.

  virtual ~Store();
  /// Replaces the previous value.
  virtual void set(std::string_view key, std::span<const std::byte> value) = 0;
  /// Empty if there is no such key. Never waits for another rank.
  virtual std::optional<Bytes> try_get(std::string_view key) = 0;
  /// Blocks until the key exists. @throws Error timeout, naming the key.
  virtual Bytes get(std::string_view key, Deadline deadline) = 0;
  /// Adds atomically and returns the new value; a missing key counts as 0. The value is kept as
  /// decimal text. @throws Error invalid_argument if the value is not a number, count_overflow.
  virtual std::int64_t add(std::string_view key, std::int64_t delta) = 0;
  /// Sets `desired` if the value equals `expected`, or if `expected` is empty and the key is
  /// missing. Returns the value afterwards (empty: the key is missing).
  virtual Bytes compare_set(std::string_view key, std::span<const std::byte> expected,
                            std::span<const std::byte> desired) = 0;
  /// Removes a key. True if it existed.
  virtual bool erase(std::string_view key) = 0;
  /// This machine's address on the interface that reaches the store: numeric, without a port; of
  /// loopback if the store is on this machine. Empty without a network.
  virtual std::string local_address() const { return {}; }
  /// True if all users of this store are threads of this process.
  virtual bool in_process() const { return false; }

  /// Text forms of set() and get().
  void set(std::string_view key, std::string_view value);
  std::string get_text(std::string_view key, Deadline deadline);  ///< See get().
};

/// A store for ranks that are threads of one process.
std::shared_ptr<Store> make_memory_store();

/// Files in `directory`, which must exist and be shared by all ranks, with working rename() and
/// flock(). Use a new directory for every run: the store never empties it.
std::shared_ptr<Store> make_file_store(const std::string& directory);

/// Connects to a StoreServer, retrying with growing pauses until `timeout`, which also limits every
/// call that takes no Deadline. host: a name, an IPv4 or an IPv6 address. One connection, shared by
/// any number of threads.
/// @throws Error timeout; invalid_argument if another program answers at that port; unsupported for
///         another version; resource_exhausted if the server is full. Calls throw peer_lost if the
///         server is gone, timeout if it does not answer, and resource_exhausted at a limit of the
///         table.
std::shared_ptr<Store> make_tcp_store(const std::string& host, int port,
                                      std::chrono::nanoseconds timeout);

/// A store over `base` that puts `prefix` before every key.
std::shared_ptr<Store> make_prefix_store(std::shared_ptr<Store> base, std::string prefix);

/// Opens a store by its address: "tcp://host:port" with an IPv6 address in brackets,
/// "file:///directory", or "memory://name": one store per name in this process, while it is in use.
/// @throws Error invalid_argument for bad syntax, unsupported for another scheme.
std::shared_ptr<Store> open_store(std::string_view address,
                                  std::chrono::nanoseconds timeout = std::chrono::seconds(60));

}  // namespace tutti
