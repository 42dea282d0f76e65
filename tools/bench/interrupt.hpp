#pragma once

#include <atomic>
#include <mutex>
#include <string_view>

#include <tutti/process_group.hpp>

namespace tutti::tool {

/// Ends a run early. Any thread may ask; the ranks of this process poll.
class Interrupt {
 public:
  /// Ends the run after the current size. False if there is no group yet and so no current size.
  bool ask() noexcept;
  bool asked() const noexcept { return asked_.load(std::memory_order_relaxed); }

  /// Ends the run now: aborts calls in flight. False if there is no group.
  bool abort(std::string_view why) noexcept;

  /// Registers a group for abort() while this object lives.
  class Scope {
   public:
    Scope(Interrupt& interrupt, ProcessGroup& group);
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope();

   private:
    Interrupt& interrupt_;
  };

 private:
  std::mutex mutex_{};
  ProcessGroup* group_ = nullptr;
  std::atomic<bool> asked_ = false;
};

}  // namespace tutti::tool
