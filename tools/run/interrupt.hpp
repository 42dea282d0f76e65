#pragma once

#include <atomic>
#include <mutex>
#include <string_view>

#include <tutti/process_group.hpp>

namespace tutti::tool {

/// Ends a run early. Any thread asks; the ranks of this process look.
class Interrupt {
 public:
  /// The run ends after the size that is being measured. False when there is no group yet, and so
  /// nothing to finish.
  bool ask() noexcept;
  bool asked() const noexcept { return asked_.load(std::memory_order_relaxed); }

  /// The run ends now: calls in flight are aborted. False when there is no group.
  bool abort(std::string_view why) noexcept;

  /// While it lives, the group is what abort() ends.
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
