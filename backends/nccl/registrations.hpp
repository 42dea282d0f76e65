#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <tutti/backend/backend_table.hpp>
#include <tutti/deadline.hpp>

#include "communicator.hpp"
#include "failure.hpp"
#include "launcher.hpp"

namespace tutti::backend::nccl {

/// The memory that the program has registered with a group's communicator, as windows or buffers.
///
/// Called from any thread. `mutex_` guards entries_; the locks of the other parts of the group are
/// taken under it.
class Registrations {
 public:
  /// The arguments outlive it.
  Registrations(std::shared_ptr<Gpu> gpu, const BackendInit& init, Memory& memory,
                std::shared_ptr<Communicator> communicator, Launcher& launcher, Failure& failure);
  Registrations(const Registrations&) = delete;
  Registrations& operator=(const Registrations&) = delete;

  /// NCCL's memory, which windows need; the group's memory if this NCCL has none.
  Memory& memory() const noexcept;
  /// The kind to pass to add() for this block. @throws Error unsupported if `stream` is being
  /// captured, or if this NCCL has no registration.
  RegistrationKind kind_of(const TensorView& block, Stream stream) const;
  /// Registers a block; for a window this is a collective of all ranks. Falls back to a buffer if
  /// NCCL makes no window. Returns an empty Registration if NCCL's settings forbid both. `owner`
  /// contains this object; after its end, the Registration's destructor does nothing. @throws
  /// Error; the group is then broken.
  Registration add(const TensorView& block, RegistrationKind kind, Deadline limit,
                   std::weak_ptr<void> owner);
  /// Ends all registrations, before the communicator ends.
  void end_all() noexcept;

 private:
  /// Memory registered with NCCL, and its handle.
  struct Entry {
    RegistrationKind kind;
    const void* data;
    void* handle;
    friend bool operator==(const Entry&, const Entry&) = default;
  };
  bool has_window_at(const void* data) const;
  Entry make(const TensorView& block, RegistrationKind kind, void** handle, const std::string& what,
             Deadline limit);
  void await_window(const TensorView& block, void** handle, const std::string& what,
                    Deadline limit);
  void end(const Entry& entry) noexcept;
  void deregister(const Entry& entry) noexcept;

  std::shared_ptr<Gpu> gpu_;
  const BackendInit& init_;
  Memory& memory_;
  std::shared_ptr<Communicator> communicator_;
  Launcher& launcher_;
  Failure& failure_;
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
};

}  // namespace tutti::backend::nccl
