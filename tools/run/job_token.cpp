#include "run/job_token.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>

#include <tutti/error.hpp>

#include "common/exit_code.hpp"

namespace tutti::tool {
namespace {

/// A file in memory with the token, which only this user can read.
Descriptor in_memory(std::string_view text) {
  Descriptor memory(::memfd_create("tutti token", MFD_CLOEXEC));
  if (!memory || ::fchmod(memory.get(), S_IRUSR) != 0 ||
      ::write(memory.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    throw Failure(Exit::unavailable,
                  fmt::format("cannot keep the token of the job: {}", std::strerror(errno)));
  return memory;
}

}  // namespace

JobToken::JobToken(const LaunchOptions& options) : file_(options.token_file) {
  if (const char* file = std::getenv("TUTTI_TOKEN_FILE"); file != nullptr && file_.empty())
    file_ = file;
  try {
    if (!file_.empty()) {
      token_ = StoreToken::read(file_);
    } else if (options.nodes == 1 && StoreToken::available()) {
      token_ = StoreToken::random();
      memory_ = in_memory(token_.text());
      file_ = fmt::format("/proc/{}/fd/{}", ::getpid(), memory_.get());
    }
  } catch (const Error& error) {
    throw Failure(Exit::usage, error.message());
  }
}

}  // namespace tutti::tool
