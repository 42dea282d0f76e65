#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>

#include <tutti/store/store.hpp>

#include "store/checks.hpp"
#include "values/fail.hpp"

// A key is a file. rename() makes a value visible, so a reader sees all of it or nothing. All
// functions that write hold an flock() on one lock file. Changes by other ranks are found by
// polling.

namespace [[gnu::visibility("default")]] tutti {
namespace {

namespace fs = std::filesystem;

class File {
 public:
  File(const fs::path& path, int flags) : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

[[noreturn]] void os_error(const char* what, const fs::path& path) {
  const int error = errno;
  internal::failf(error == ENOSPC || error == EMFILE || error == ENFILE ? Errc::resource_exhausted
                                                                        : Errc::backend,
                  "file store: cannot {} {}: {}", what, path.string(), std::strerror(error));
}

/// The path of a key, different for every key and valid on every file system. Letters, digits, -
/// and _ stay; all other bytes become %xx. Names longer than 200 characters continue in a folder
/// whose name ends in '+'. The file's name ends in ".v".
fs::path file_of(std::string_view key) {
  constexpr std::size_t longest = 200;
  std::string name;
  for (const char c : key) {
    const auto u = static_cast<unsigned char>(c);
    if ((u >= '0' && u <= '9') || (u >= 'a' && u <= 'z') || (u >= 'A' && u <= 'Z') || u == '-' ||
        u == '_')
      name += c;
    else
      name += fmt::format("%{:02x}", u);
  }
  fs::path path;
  std::size_t from = 0;
  for (; name.size() - from > longest; from += longest) path /= name.substr(from, longest) + '+';
  return path / (name.substr(from) + ".v");
}

class FileStore final : public Store {
 public:
  explicit FileStore(const std::string& directory) : directory_(directory) {
    std::error_code error;
    if (!fs::is_directory(directory_, error))
      internal::failf(Errc::invalid_argument,
                      "file store: '{}' is not a directory; create it first", directory);
  }

  using Store::set;
  void set(std::string_view key, std::span<const std::byte> value) override {
    internal::check_key(key);
    internal::check_value(key, value.size());
    // Under the lock: otherwise an add() that reads before this set() and writes after it would
    // discard this set()'s value.
    const Lock lock(directory_);
    write(key, value);
  }

  std::optional<Bytes> try_get(std::string_view key) override {
    internal::check_key(key);
    return read(key);
  }

  Bytes get(std::string_view key, Deadline deadline) override {
    internal::check_key(key);
    auto pause = std::chrono::microseconds(50);
    for (;;) {
      if (auto value = read(key)) return *std::move(value);
      const auto left = deadline.remaining();
      if (left == std::chrono::nanoseconds(0)) internal::missing(key);
      std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(pause, left));
      pause = std::min(pause * 2, std::chrono::microseconds(10000));
    }
  }

  std::int64_t add(std::string_view key, std::int64_t delta) override {
    internal::check_key(key);
    const Lock lock(directory_);
    std::int64_t result = 0;
    write(key, internal::sum(key, read(key), delta, result));
    return result;
  }

  Bytes compare_set(std::string_view key, std::span<const std::byte> expected,
                    std::span<const std::byte> desired) override {
    internal::check_key(key);
    internal::check_value(key, desired.size());
    const Lock lock(directory_);
    auto now = read(key);
    const bool equal = now ? std::ranges::equal(*now, expected) : expected.empty();
    if (!equal) return now.value_or(Bytes{});
    write(key, desired);
    return {desired.begin(), desired.end()};
  }

  bool erase(std::string_view key) override {
    internal::check_key(key);
    const Lock lock(directory_);
    const auto path = directory_ / file_of(key);
    if (::unlink(path.c_str()) == 0) return true;
    if (errno != ENOENT) os_error("remove", path);
    return false;
  }

 private:
  struct Lock {
    explicit Lock(const fs::path& directory) : file(directory / ".lock", O_RDWR | O_CREAT) {
      if (file.fd() < 0) os_error("open", directory / ".lock");
      while (::flock(file.fd(), LOCK_EX) != 0)
        if (errno != EINTR) os_error("lock", directory / ".lock");
    }
    File file;  // Closed to unlock.
  };

  std::optional<Bytes> read(std::string_view key) const {
    const auto path = directory_ / file_of(key);
    const File file(path, O_RDONLY);
    if (file.fd() < 0) {
      if (errno == ENOENT) return std::nullopt;
      os_error("open", path);
    }
    const auto size = ::lseek(file.fd(), 0, SEEK_END);
    if (size < 0 || static_cast<std::size_t>(size) > max_value_bytes) os_error("read", path);
    Bytes value(static_cast<std::size_t>(size));
    std::size_t got = 0;
    while (got < value.size()) {
      const auto n =
          ::pread(file.fd(), value.data() + got, value.size() - got, static_cast<off_t>(got));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) os_error("read", path);
      got += static_cast<std::size_t>(n);
    }
    return value;
  }

  void write(std::string_view key, std::span<const std::byte> value) const {
    const auto path = directory_ / file_of(key);
    if (path.parent_path() != directory_) {
      std::error_code error;
      fs::create_directories(path.parent_path(), error);
      if (error) {
        errno = error.value();
        os_error("create", path.parent_path());
      }
    }
    // The lock admits one writer, so one name suffices for the unfinished file.
    const auto unfinished = directory_ / ".unfinished";
    {
      const File file(unfinished, O_WRONLY | O_CREAT | O_TRUNC);
      if (file.fd() < 0) os_error("create", unfinished);
      std::size_t put = 0;
      while (put < value.size()) {
        const auto n = ::write(file.fd(), value.data() + put, value.size() - put);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) os_error("write", unfinished);
        put += static_cast<std::size_t>(n);
      }
    }
    if (::rename(unfinished.c_str(), path.c_str()) != 0) os_error("rename", path);
  }

  fs::path directory_;
};

}  // namespace

std::shared_ptr<Store> make_file_store(const std::string& directory) {
  return std::make_shared<FileStore>(directory);
}

}  // namespace tutti
