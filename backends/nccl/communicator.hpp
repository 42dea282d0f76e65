#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include <tutti/backend/backend.hpp>
#include <tutti/deadline.hpp>
#include <tutti/group_options.hpp>

#include "gpu.hpp"

namespace tutti::backend::nccl {

/// A scope between ncclGroupStart and ncclGroupEnd. An open ncclGroup collects every later NCCL
/// call of the thread, so the scope closes the ncclGroup after an exception too.
class GroupScope {
 public:
  explicit GroupScope(const NcclApi& nccl) : nccl_(nccl) {
    check(nccl_, nccl_.group_start(), "ncclGroupStart");
  }
  ~GroupScope() {
    if (open_) (void)nccl_.group_end();
  }
  GroupScope(const GroupScope&) = delete;
  GroupScope& operator=(const GroupScope&) = delete;
  void end() {
    open_ = false;
    check(nccl_, nccl_.group_end(), "ncclGroupEnd");
  }

 private:
  const NcclApi& nccl_;
  bool open_ = true;
};

/// Returns the id in `bytes`, which a rank has published in the store. `whose`: the rank, for the
/// error text. @throws Error mismatch if the length is wrong.
ncclUniqueId to_id(std::span<const std::byte> bytes, std::string_view whose);

/// A non-blocking ncclComm_t. Called from any thread; calls NCCL from one thread at a time.
class Communicator {
 public:
  explicit Communicator(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}
  ~Communicator();  ///< Does not destroy a communicator that was neither aborted nor ended.
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// Begins to connect; ready() returns true when all ranks are connected. @throws Error aborted
  /// after abort(), or NCCL's error.
  void begin(const ncclUniqueId& id, int rank, int size);
  /// Adopts a communicator of the program. begin_end() leaves it to the program. abort() calls
  /// AdoptedCommunicator::aborting and then aborts it. @throws Error aborted after abort().
  void adopt(const AdoptedCommunicator& adopted);
  /// True when no call into NCCL is still ncclInProgress. @throws Error NCCL's asynchronous error,
  /// or aborted when the communicator has ended.
  bool ready();
  /// Throws as ready() does, unless another thread is inside NCCL. Never blocks.
  void look();

  /// Runs call(ncclComm_t) under the lock. @throws Error aborted when the communicator has ended.
  template <typename Call>
  void use(const Call& call) {
    const std::lock_guard lock(mutex_);
    require();
    call(comm_);
  }

  /// Keeps `what`, memory that NCCL may write to, alive until this object is destroyed.
  void keep(std::shared_ptr<void> what);
  /// Aborts the communicator. Later calls throw aborted. May hang in NCCL.
  void abort() noexcept;
  /// Finalizes and destroys a communicator without blocking. begin_end() begins, when no operation
  /// is in progress, and returns false if NCCL refuses. Poll ended() then: it returns true when it
  /// has destroyed the communicator.
  bool begin_end() noexcept;
  bool ended() noexcept;
  /// Counts a call that is captured on `stream`. NCCL aborts and finalizes the communicator only
  /// when all graphs with its calls have been destroyed (commDestroySync in NCCL's init.cc).
  /// @throws Error.
  void hold_by_graph(cudaStream_t stream);
  /// True while such a graph is left.
  bool is_held() const noexcept { return *graphs_ != 0; }
  /// Makes the device current on the calling thread, which is the library's own.
  void use_device() const noexcept;

 private:
  void require() const;
  bool ready_now();

  std::shared_ptr<Gpu> gpu_;
  std::mutex mutex_;
  ncclComm_t comm_ = nullptr;
  bool aborted_ = false;
  bool adopted_ = false;
  std::function<void()> aborting_;
  std::vector<std::shared_ptr<void>> kept_;
  std::shared_ptr<std::atomic<int>> graphs_ = std::make_shared<std::atomic<int>>(0);
};

using Communicators = std::vector<std::shared_ptr<Communicator>>;

/// The longest time that abort_all() waits for ncclCommAbort.
constexpr std::chrono::seconds abort_bound{10};

/// Aborts all communicators, each on a separate thread because ncclCommAbort may hang. True when
/// all have ended within abort_bound, or are held by graphs alone: then NCCL has told its kernels
/// to end, and ends the communicators when the graphs are destroyed.
bool abort_all(const Communicators& all) noexcept;

/// Finalizes and destroys all communicators, each on a separate thread. Aborts a communicator that
/// has not ended after a thirtieth of the group's timeout, at least 1 s and at most 10 s. Returns
/// after at most twice that time. A communicator that is held by graphs ends later, when they are
/// destroyed.
void end_all(const Communicators& all, std::chrono::nanoseconds timeout) noexcept;

}  // namespace tutti::backend::nccl
