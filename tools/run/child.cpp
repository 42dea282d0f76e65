#include "run/child.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <tuple>

#include "common/exit_code.hpp"

namespace tutti::tool {
namespace {

/// Signals that are forwarded to the ranks, and signals about ranks and the terminal.
constexpr std::array handled{SIGCHLD, SIGINT,  SIGTERM, SIGHUP, SIGQUIT,
                             SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT};

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (const auto& text : texts) all.push_back(const_cast<char*>(text.c_str()));
  all.push_back(nullptr);
  return all;
}

/// Descriptors that become 0, 1 and 2 of a child; -1: its parent's.
struct Streams {
  int in;
  int out;
  int err;
};

/// Runs between fork and exec, so only async-signal-safe calls are allowed. Returns only on
/// failure, with errno set.
void become(char* const* command, char* const* environment, const Streams& streams,
            pid_t parent_pid, const ParentScope& parent) {
  if (::setpgid(0, 0) != 0 || ::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return;
  if (::getppid() != parent_pid) ::_exit(1);  // The parent died before this setting took effect.
  if (streams.in >= 0 && ::dup2(streams.in, 0) < 0) return;
  if (streams.out >= 0 && ::dup2(streams.out, 1) < 0) return;
  if (streams.err >= 0 && ::dup2(streams.err, 2) < 0) return;
  parent.undo_in_child();
  ::execvpe(command[0], command, environment);
}

/// Returns the two ends of a terminal that passes bytes unchanged, both close-on-exec: what is
/// written to the second is read from the first. Returns nothing if the system has no more
/// terminals.
std::pair<Descriptor, Descriptor> make_terminal() {
  Descriptor reader(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!reader || ::grantpt(reader.get()) != 0 || ::unlockpt(reader.get()) != 0) return {};
  Descriptor writer(::ioctl(reader.get(), TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC));
  struct termios settings {};
  if (!writer || ::tcgetattr(writer.get(), &settings) != 0) return {};
  ::cfmakeraw(&settings);
  if (::tcsetattr(writer.get(), TCSANOW, &settings) != 0) return {};
  const struct winsize size { .ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0 };
  (void)::ioctl(reader.get(), TIOCSWINSZ, &size);  // Some programs divide by it.
  return {std::move(reader), std::move(writer)};
}

[[noreturn]] void refuse_program(const std::string& program, int error) {
  const bool missing = error == ENOENT || error == ENOTDIR;
  std::string why = std::strerror(error);
  if (missing && program.find('/') == std::string::npos)
    why = "not found in PATH; a program in this directory is ./" + program;
  else if (missing && ::access(program.c_str(), F_OK) == 0)
    why = "the interpreter in its first line is not there";
  throw Failure(static_cast<Exit>(missing ? 127 : 126),
                fmt::format("cannot run '{}': {}", program, why));
}

}  // namespace

void Descriptor::close() noexcept {
  if (number_ >= 0) ::close(std::exchange(number_, -1));
}

std::pair<Descriptor, Descriptor> make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    throw Failure(Exit::unavailable, fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

Descriptor make_unnamed_file(const char* directory) noexcept {
  return Descriptor(directory == nullptr
                        ? ::memfd_create("tutti", MFD_CLOEXEC)
                        : ::open(directory, O_TMPFILE | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR));
}

ParentScope::ParentScope() {
  for (int number = 0; number < 3;
       ++number)  // Otherwise a pipe to a child could get one of these numbers.
    if (::fcntl(number, F_GETFD) < 0) (void)!::open("/dev/null", O_RDWR);
  sigset_t mask;
  sigemptyset(&mask);
  for (const int signal : handled) {
    struct sigaction action {};
    // A signal that the parent ignores, as under nohup, stays ignored. If blocked, it would not.
    if (::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN &&
        signal != SIGCHLD)
      continue;
    sigaddset(&mask, signal);
  }
  ::pthread_sigmask(SIG_BLOCK, &mask, &old_mask_);
  struct sigaction action {};
  action.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &action, &old_pipe_);
  action.sa_handler = SIG_DFL;  // If SIGCHLD were ignored, children would leave no status.
  ::sigaction(SIGCHLD, &action, &old_child_);
  signals_ = Descriptor(::signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_)
    throw Failure(Exit::unavailable,
                  fmt::format("cannot make a signalfd: {}", std::strerror(errno)));
  ::prctl(PR_GET_CHILD_SUBREAPER, &old_subreaper_);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  ::getrlimit(RLIMIT_NOFILE, &old_files_);
  struct rlimit files = old_files_;
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
}

ParentScope::~ParentScope() {
  while (next_signal() != 0) {
  }
  ::prctl(PR_SET_CHILD_SUBREAPER, old_subreaper_);
  undo_in_child();
}

void ParentScope::undo_in_child() const noexcept {
  ::setrlimit(RLIMIT_NOFILE, &old_files_);
  ::sigaction(SIGPIPE, &old_pipe_, nullptr);
  ::sigaction(SIGCHLD, &old_child_, nullptr);
  ::pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
}

int ParentScope::next_signal() const {
  signalfd_siginfo info{};
  return ::read(signals_.get(), &info, sizeof info) == sizeof info
             ? static_cast<int>(info.ssi_signo)
             : 0;
}

Child start_child(const ChildOptions& options, const ParentScope& parent) {
  auto command = pointers(options.command);
  auto environment = pointers(options.environment);
  Child child;
  Descriptor out, err, in;
  if (options.own_output) {
    // The C library, Python and others buffer lines on a terminal, and blocks of kilobytes in a
    // pipe, which are lost if a signal ends the process.
    std::tie(child.out, out) = make_terminal();
    if (!child.out) std::tie(child.out, out) = make_pipe();
    std::tie(child.err, err) = make_pipe();
    for (const int end : {child.out.get(), child.err.get()}) ::fcntl(end, F_SETFL, O_NONBLOCK);
  }
  if (options.own_input) in = Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  // A successful exec closes `report`; otherwise the child writes errno to it.
  auto [answer, report] = make_pipe();

  const pid_t self = ::getpid();
  child.pid = ::fork();
  if (child.pid < 0)
    throw Failure(Exit::unavailable,
                  fmt::format("cannot start another process: {}", std::strerror(errno)));
  if (child.pid == 0) {
    become(command.data(), environment.data(), {in.get(), out.get(), err.get()}, self, parent);
    const int error = errno;
    (void)!::write(report.get(), &error, sizeof error);
    ::_exit(127);
  }
  // Set in parent and child, so that the group exists before the first signal to it.
  ::setpgid(child.pid, child.pid);
  report.close();
  int error = 0;
  ssize_t n = 0;
  do n = ::read(answer.get(), &error, sizeof error);
  while (n < 0 && errno == EINTR);
  if (n == sizeof error) refuse_program(options.command[0], error);
  return child;
}

void signal_children(int signal) {
  const auto self = ::getpid();
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    const auto name = entry.path().filename().string();
    pid_t pid = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), pid).ec != std::errc()) continue;
    std::ifstream file(entry.path() / "stat");
    std::string line;
    std::getline(file, line);
    // "pid (name) state parent ...", where the name may contain any character.
    const auto after = line.rfind(") ");
    if (after == std::string::npos || line.size() < after + 4) continue;
    pid_t parent = 0;
    std::from_chars(line.data() + after + 4, line.data() + line.size(), parent);
    if (parent == self) ::kill(pid, signal);
  }
}

}  // namespace tutti::tool
