#pragma once

#include <memory>
#include <utility>

namespace [[gnu::visibility("default")]] tutti {

/// The kinds of registration of a block of memory. Each kind gives all the advantages of the kinds
/// before it.
enum class RegistrationKind {
  none,    ///< Not registered: nothing would be gained.
  buffer,  ///< Known to this rank's transport, which may move it without an intermediate copy.
  window,  ///< Known to all ranks: the transport may read and write peers' blocks.
};

/// The registration of a block with a group's transport, made by ProcessGroup::register_memory().
/// Transfers get faster; results do not change, and other arrays are still accepted.
///
/// Destroy it before the memory is freed, on all ranks between the same calls. The destructor does
/// not communicate; it blocks the host until the group's pending calls have ended. The end of a
/// group ends all of its registrations. A resource type: move-only. Any thread, one at a time.
class [[nodiscard]] Registration {
 public:
  Registration() noexcept = default;  ///< Registers nothing.
  /// For backends: the destructor of the object that owns `held` ends the registration.
  explicit Registration(std::shared_ptr<const RegistrationKind> held) noexcept
      : held_(std::move(held)) {}
  Registration(Registration&&) noexcept = default;
  Registration& operator=(Registration&&) noexcept = default;  ///< Ends the one it held.
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
  ~Registration() = default;

  /// `none` if it registers nothing.
  RegistrationKind kind() const noexcept {
    return held_ == nullptr ? RegistrationKind::none : *held_;
  }

 private:
  std::shared_ptr<const RegistrationKind> held_;
};

}  // namespace tutti
