#pragma once

#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

namespace tutti::tool {

/// A descriptor that is closed with it. Move-only.
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

/// Its ends to read from and to write to. A child does not get them. @throws Failure unavailable.
std::pair<Descriptor, Descriptor> make_pipe();

/// What this process changes about itself while it has children, and puts back: their signals come
/// to a descriptor, orphans below them come to it, and it may open as many descriptors as allowed.
class ParentScope {
 public:
  ParentScope();
  ParentScope(const ParentScope&) = delete;
  ParentScope& operator=(const ParentScope&) = delete;
  ~ParentScope();

  /// Readable when a signal has come.
  int signals() const noexcept { return signals_.get(); }
  /// The next one that has come, or 0.
  int next_signal() const;
  /// In a child: as if this object had never been. Async-signal-safe.
  void undo_in_child() const noexcept;

 private:
  sigset_t old_mask_{};
  struct sigaction old_pipe_ {};
  struct sigaction old_child_ {};
  struct rlimit old_files_ {};
  int old_subreaper_ = 0;
  Descriptor signals_{};
};

/// A process that was started, and the ends of its output that are ours.
struct Child {
  pid_t pid = -1;  ///< Also the number of its process group.
  Descriptor out{};
  Descriptor err{};
};

/// What a child gets beside its environment.
struct ChildOptions {
  std::vector<std::string> command{};
  std::vector<std::string> environment{};  ///< "NAME=value".
  bool own_output = true;                  ///< Pipes to us; false: what this process has.
  bool own_input = true;                   ///< /dev/null; false: what this process has.
};

/// Starts a process in a group of its own that dies with this thread.
/// @throws Failure 127 when the program is not found, 126 when it cannot be run, unavailable when
///         the system refuses another process.
Child start_child(const ChildOptions& options, const ParentScope& parent);

/// Sends a signal to the processes whose parent is this one.
void signal_children(int signal);

}  // namespace tutti::tool
