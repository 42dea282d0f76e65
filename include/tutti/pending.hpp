#pragma once

#include <functional>
#include <utility>

#include <tutti/deadline.hpp>
#include <tutti/device.hpp>
#include <tutti/error.hpp>
#include <tutti/work.hpp>

namespace [[gnu::visibility("default")]] tutti {

/// The value of a call in flight. Owns the arrays that the call writes; arrays lent by the caller
/// must live until get() or the destructor. Without get() the destructor waits, as ~Work() does. A
/// resource type: move-only. One thread at a time.
template <class T>
class [[nodiscard]] Pending {
 public:
  /// For functions that return a Pending: `work` writes into arrays that `value` owns.
  Pending(T value, Work work) noexcept : value_(std::move(value)), work_(std::move(work)) {}
  Pending(Pending&&) noexcept = default;
  Pending& operator=(Pending&& other) noexcept {
    work_ = std::move(other.work_);  // First: waits for the call that writes into value_.
    value_ = std::move(other.value_);
    taken_ = other.taken_;
    return *this;
  }
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;
  ~Pending() = default;

  /// Waits as Work::wait() does and returns the value, once. @throws Error of the call; there is no
  /// value then.
  T get() {
    if (taken_)
      fail(Errc::invalid_argument, "Pending::get() was already called; it returns the result once");
    taken_ = true;  // Also after an error: the value was not written.
    work_.wait();
    return std::move(value_);
  }
  /// The functions of Work. Only get() returns the value; it throws the call's error.
  bool done() const noexcept { return work_.done(); }
  /// Work::wait_until().
  bool wait_until(Deadline deadline) const { return work_.wait_until(deadline); }
  /// Work::wait_for().
  template <typename Rep, typename Period>
  bool wait_for(std::chrono::duration<Rep, Period> time) const {
    return wait_until(time);
  }
  /// Work::on_done().
  void on_done(std::function<void(const Error*)> f) { work_.on_done(std::move(f)); }
  /// Work::block_stream().
  void block_stream(Stream stream) { work_.block_stream(stream); }

 private:
  T value_;
  Work work_;  // Last member: destroyed first.
  bool taken_ = false;
};

}  // namespace tutti
