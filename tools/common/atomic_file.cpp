#include "common/atomic_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "common/exit_code.hpp"

namespace tutti::tool {
namespace {

std::string reason() {
  return std::generic_category().message(errno);
}

}  // namespace

AtomicFile::AtomicFile(std::string path)
    : path_(std::move(path)), temporary_(fmt::format("{}.{}.tmp", path_, getpid())) {
  file_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file_ < 0) refuse("--out {}: cannot be written: {}", path_, reason());
}

AtomicFile::~AtomicFile() {
  if (file_ < 0) return;
  close(file_);
  unlink(temporary_.c_str());
}

void AtomicFile::commit(std::string_view text) {
  const auto failed = [this](const char* step) {
    throw Failure(Exit::internal, fmt::format("{}: {} failed: {}", path_, step, reason()));
  };
  while (!text.empty()) {
    const ssize_t n = write(file_, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) failed("write");
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  // Syncs the bytes first: the rename must not become durable before them.
  if (fsync(file_) != 0 && errno != EINVAL) failed("fsync");
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) failed("rename");
  close(std::exchange(file_, -1));
}

}  // namespace tutti::tool
