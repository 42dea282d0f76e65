#include "run/output.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace tutti::tool {

Sink::Sink(int descriptor) : descriptor_(descriptor), chunk_bytes_(PIPE_BUF) {
  // A pipe that poll() reports as writable accepts PIPE_BUF bytes without blocking, a regular file
  // any number. A terminal may accept fewer; write() then blocks until it has been drained.
  struct stat status {};
  if (::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode)) chunk_bytes_ = full_bytes;
}

void Sink::write_some() {
  const auto n = ::write(descriptor_, waiting_.data() + written_,
                         std::min(chunk_bytes_, waiting_.size() - written_));
  if (n >= 0) {
    written_ += static_cast<std::size_t>(n);
  } else if (errno != EINTR && errno != EAGAIN) {
    broken_ = true;
    written_ = waiting_.size();
  }
  if (empty() || written_ > full_bytes) {
    waiting_.erase(0, written_);
    written_ = 0;
  }
}

void Prefixer::put(std::string_view rest, std::string& out) {
  out += prefix_;
  out += line_;
  out += rest;
  out += '\n';
  line_.clear();
}

void Prefixer::take(std::string_view bytes, std::string& out) {
  while (!bytes.empty()) {
    const auto end = bytes.find('\n');
    const auto room = longest_line - line_.size();
    const auto length = std::min(end == std::string_view::npos ? bytes.size() : end, room + 1);
    if (length > room) {  // One byte more than the limit of a line.
      put(bytes.substr(0, room), out);
      bytes.remove_prefix(room);
    } else if (length == end) {
      put(bytes.substr(0, length), out);
      bytes.remove_prefix(length + 1);
    } else {
      line_ += bytes;
      return;
    }
  }
}

void Prefixer::finish(std::string& out) {
  if (!line_.empty()) put({}, out);
}

}  // namespace tutti::tool
