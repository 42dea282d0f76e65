#pragma once

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

/// The id that rank `whose` published in the store. @throws Error mismatch.
ncclUniqueId to_id(std::span<const std::byte> bytes, std::string_view whose);

/// A non-blocking ncclComm_t. Called from any thread; calls NCCL from one thread at a time.
class Communicator {
 public:
  explicit Communicator(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}
  ~Communicator();  ///< Does not destroy a communicator that was neither aborted nor ended.
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  /// Begins to connect. ready() is true when all ranks are connected.
  void begin(const ncclUniqueId& id, int rank, int size);
  /// Adopts a communicator, which it does not destroy. An abort calls `aborting` first.
  void adopt(const AdoptedCommunicator& adopted);
  /// True when NCCL has no operation in progress. @throws Error NCCL's asynchronous error.
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

  /// Keeps memory that NCCL may write to alive until the communicator has ended.
  void keep(std::shared_ptr<void> what);
  /// Aborts all operations. The duration is not bounded.
  void abort() noexcept;
  /// Finalizes and destroys a communicator that has no operation in progress. begin_end() is false
  /// when NCCL refuses; ended() is true when the communicator has ended.
  bool begin_end() noexcept;
  bool ended() noexcept;
  /// Makes the device current on a thread of the library's own.
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
};

using Communicators = std::vector<std::shared_ptr<Communicator>>;

/// The longest time that abort_all() waits for ncclCommAbort.
constexpr std::chrono::seconds abort_bound{10};

/// Aborts all communicators, each on a separate thread because ncclCommAbort may hang. True when
/// all have ended within abort_bound.
bool abort_all(const Communicators& all) noexcept;

/// Finalizes and destroys all communicators, each on a separate thread. Aborts a communicator after
/// 1 s, and returns after at most 2 s.
void end_all(const Communicators& all) noexcept;

}  // namespace tutti::backend::nccl
