#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <utility>

#include <unistd.h>

namespace tutti::backend::mesh {

/// A socket that is closed at its end.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) noexcept : descriptor_(descriptor) {}
  ~Socket() { reset(); }
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  explicit operator bool() const noexcept { return descriptor_ >= 0; }
  int get() const noexcept { return descriptor_; }
  void reset() noexcept {
    if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
  }

 private:
  int descriptor_ = -1;
};

/// Makes the kernel end an idle connection whose peer's machine has not answered for `time`.
void probe_idle(int descriptor, std::chrono::nanoseconds time) noexcept;
/// The same, for one that is not idle too. A peer that does not read keeps its connection only for
/// that time if the kernel's buffers are full.
void end_unanswered(int descriptor, std::chrono::nanoseconds time) noexcept;

/// The time since the last answer of the peer's machine, if data or a probe have been sent at least
/// twice since: one may be lost, and Linux answers at most two probes a second. A machine answers
/// also for a process that does not read.
std::optional<std::chrono::milliseconds> unanswered(int descriptor) noexcept;

/// The congestion control reno. A network within one machine has no slow link whose queue bbr could
/// keep short, and bbr's pacing costs time there. No effect if the kernel refuses it.
void use_reno(int descriptor) noexcept;

/// Blocks until the peers' machines have acknowledged all sent data, because closing a socket with
/// unread input drops its unsent data. Gives up after 1 s without progress, or after 50 ms if only
/// acknowledgements are missing.
void drain(std::span<const int> descriptors) noexcept;

}  // namespace tutti::backend::mesh
