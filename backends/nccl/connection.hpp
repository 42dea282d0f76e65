#pragma once

#include <chrono>
#include <memory>

#include <nccl.h>

#include <tutti/backend/backend_table.hpp>
#include <tutti/deadline.hpp>

#include "backend/agreement.hpp"
#include "communicator.hpp"

namespace tutti::backend::nccl {

/// Makes a group's communicator from a BackendInit. The ranks find each other through the store.
/// Then rank 0 publishes an ncclUniqueId, or each rank adopts the communicator given to it.
///
/// Used by the thread that makes the group; communicator() from any thread.
class Connection {
 public:
  /// `init` and `agreement` outlive this object. `store`: the group's store for this backend.
  Connection(std::shared_ptr<Gpu> gpu, const BackendInit& init, std::shared_ptr<Store> store,
             internal::Agreement& agreement);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Blocks until the communicator of all ranks is ready. @throws Error.
  void open(Deadline limit);
  /// Polls the store while the group is being made. @throws Error the cause that a peer has
  /// published.
  void check_peers();
  /// Reports `mine`, the error because of which this rank cannot make the group, and aborts the
  /// communicator. Returns the cause on which the ranks agree.
  Error give_up(const Error& mine) noexcept;

  const std::shared_ptr<Communicator>& communicator() const noexcept { return communicator_; }

 private:
  void adopt(Deadline limit);
  /// Publishes that this rank has joined, and blocks until all ranks have joined. @throws Error
  /// timeout, whose text names the missing ranks, or the cause that a peer published.
  void meet(Deadline limit);
  ncclUniqueId exchange_id(Deadline limit);

  std::shared_ptr<Gpu> gpu_;
  const BackendInit& init_;
  std::shared_ptr<Store> store_;
  internal::Agreement& agreement_;
  std::shared_ptr<void> claim_;  // This rank's claim on the device.
  std::shared_ptr<Communicator> communicator_;
  std::chrono::steady_clock::time_point next_look_{};
};

}  // namespace tutti::backend::nccl
