#pragma once

#include <memory>

#include <nccl.h>

#include <tutti/backend/backend_table.hpp>
#include <tutti/deadline.hpp>

#include "backend/rendezvous.hpp"
#include "communicator.hpp"

namespace tutti::backend::nccl {

/// Makes a group's communicator from a BackendInit. The ranks find each other through the store.
/// Then rank 0 publishes an ncclUniqueId, or each rank adopts the communicator given to it.
///
/// Used by the thread that makes the group; communicator() from any thread.
class Connection {
 public:
  /// `init` outlives this object.
  Connection(std::shared_ptr<Gpu> gpu, const BackendInit& init);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Blocks until the communicator of all ranks is ready. @throws Error.
  void open(Deadline limit);
  /// Throws the error of a rank that has given up, while the group is being made.
  void check_peers() { rendezvous_.check(); }
  /// Reports `mine`, the error because of which this rank cannot make the group, and aborts the
  /// communicator. Returns the cause on which the ranks agree.
  Error give_up(const Error& mine) noexcept;

  const std::shared_ptr<Communicator>& communicator() const noexcept { return communicator_; }

 private:
  /// Waits for all ranks. @throws Error mismatch if their settings differ.
  void compare_settings();
  void adopt(Deadline limit);
  ncclUniqueId exchange_id();

  std::shared_ptr<Gpu> gpu_;
  const BackendInit& init_;
  internal::Rendezvous rendezvous_;
  std::shared_ptr<void> claim_;  // This rank's claim on the device.
  std::shared_ptr<Communicator> communicator_;
};

}  // namespace tutti::backend::nccl
