#pragma once

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

namespace tutti::tool {

/// A file descriptor that the destructor closes. Move-only.
class Descriptor {
 public:
  Descriptor() noexcept = default;
  explicit Descriptor(int number) noexcept : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() { close(); }

  int get() const noexcept { return number_; }
  explicit operator bool() const noexcept { return number_ >= 0; }
  void close() noexcept;

 private:
  int number_ = -1;
};

/// Makes a pipe and returns its read end and its write end, both close-on-exec. @throws Failure
/// unavailable.
std::pair<Descriptor, Descriptor> make_pipe();

/// A new file without a name: in memory (memfd), or in a directory if one is given. Not open, and
/// errno is set, if the system forbids it.
Descriptor make_unnamed_file(const char* directory = nullptr) noexcept;

/// Settings of this process while it has children; the destructor restores them. Signals arrive at
/// a signalfd, this process adopts orphans (PR_SET_CHILD_SUBREAPER), and the limit of descriptors
/// is raised to the maximum.
class ParentScope {
 public:
  ParentScope();
  ParentScope(const ParentScope&) = delete;
  ParentScope& operator=(const ParentScope&) = delete;
  ~ParentScope();

  /// A descriptor that is readable when a signal is pending.
  int signals() const noexcept { return signals_.get(); }
  /// The next pending signal, or 0.
  int next_signal() const;
  /// Restores all settings in a child. Async-signal-safe.
  void undo_in_child() const noexcept;

 private:
  sigset_t old_mask_{};
  struct sigaction old_pipe_ {};
  struct sigaction old_child_ {};
  struct rlimit old_files_ {};
  int old_subreaper_ = 0;
  Descriptor signals_{};
};

/// A started process, and this process's ends of its output.
struct Child {
  pid_t pid = -1;    ///< Number of the process and of its group.
  Descriptor out{};  ///< A terminal (reads fail with EIO at the end), or a pipe without one.
  Descriptor err{};
};

/// The arguments of start_child().
struct ChildOptions {
  std::vector<std::string> command{};
  std::vector<std::string> environment{};  ///< "NAME=value".
  bool own_output = true;                  ///< Read by this process; false: inherited.
  bool own_input = true;                   ///< /dev/null; false: inherited.
};

/// Starts a process in its own process group. The kernel kills the process when this thread ends.
/// @throws Failure 127 if the program is not found, 126 if it cannot be run, unavailable if the
/// system refuses another process.
Child start_child(const ChildOptions& options, const ParentScope& parent);

/// Sends a signal to all children of this process.
void signal_children(int signal);

}  // namespace tutti::tool
