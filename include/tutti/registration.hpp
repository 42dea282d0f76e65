#pragma once

#include <memory>
#include <utility>

namespace [[gnu::visibility("default")]] tutti {

/// How a transport knows a block of memory. Each has what those before it have.
enum class RegistrationKind {
  none,    ///< Not at all: nothing would be gained.
  buffer,  ///< By this rank: the transport may move it without a copy of its own in between.
  window,  ///< By all ranks, at one place of each: the transport may read and write peers' blocks.
};

/// Memory that the transport of a group knows, from ProcessGroup::register_memory() until this
/// ends. Only what travels gains by it, no result changes, and arrays elsewhere are always
/// accepted.
///
/// End it before the memory is freed, on all ranks between the same calls; that communicates
/// nothing, and waits on the host until the group's calls under way have ended. After the group it
/// ends nothing: a group that ends forgets all of its blocks. A resource type: move-only. Any
/// thread, one at a time.
class [[nodiscard]] Registration {
 public:
  Registration() noexcept = default;  ///< Of nothing.
  /// For backends: whatever owns `held` ends the registration when it dies.
  explicit Registration(std::shared_ptr<const RegistrationKind> held) noexcept
      : held_(std::move(held)) {}
  Registration(Registration&&) noexcept = default;
  Registration& operator=(Registration&&) noexcept = default;  ///< Ends the one that was here.
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
  ~Registration() = default;

  RegistrationKind kind() const noexcept {
    return held_ == nullptr ? RegistrationKind::none : *held_;
  }

 private:
  std::shared_ptr<const RegistrationKind> held_;
};

}  // namespace tutti
